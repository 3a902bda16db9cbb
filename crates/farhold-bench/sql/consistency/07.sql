-- 3.3.2.7: a line has no delivery date exactly if its order has no carrier.
SELECT o_w_id, o_d_id, o_id, o_carrier_id, ol_w_id, ol_d_id, ol_o_id, order_lines, undelivered
FROM (
  SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS order_lines,
         sum(CASE WHEN ol_delivery_d IS NULL THEN 1 ELSE 0 END) AS undelivered
  FROM order_line GROUP BY ol_w_id, ol_d_id, ol_o_id
) AS l
LEFT JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
WHERE o_id IS NULL OR undelivered <> CASE WHEN o_carrier_id IS NULL THEN order_lines ELSE 0 END
