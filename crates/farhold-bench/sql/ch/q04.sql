-- Q4: orders of which some line was delivered, by their number of lines.
SELECT o_ol_cnt, count(*) AS order_count
FROM orders
WHERE o_entry_d >= TIMESTAMP '2007-01-02 00:00:00'
  AND o_entry_d < TIMESTAMP '2040-01-02 00:00:00'
  AND EXISTS (SELECT *
              FROM order_line
              WHERE ol_o_id = o_id AND ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_delivery_d >= o_entry_d)
GROUP BY o_ol_cnt
ORDER BY o_ol_cnt
