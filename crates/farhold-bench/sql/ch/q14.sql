-- Q14: the share of promoted items in revenue. The original's promotion is data that starts with PR, which one item in
-- 3,844 has; here P is enough. The upper date is later than the original's.
SELECT 100.0 * CAST(sum(CASE WHEN i_data LIKE 'P%' THEN ol_amount ELSE 0 END) AS DOUBLE PRECISION)
         / CAST(1 + sum(ol_amount) AS DOUBLE PRECISION) AS promo_revenue
FROM order_line, item
WHERE ol_i_id = i_id
  AND ol_delivery_d >= TIMESTAMP '2007-01-02 00:00:00'
  AND ol_delivery_d < TIMESTAMP '2040-01-02 00:00:00'
