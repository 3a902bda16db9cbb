-- 3.3.2.6: o_ol_cnt = number of lines of each order.
SELECT o_w_id, o_d_id, o_id, o_ol_cnt, ol_w_id, ol_d_id, ol_o_id, order_lines
FROM orders
FULL JOIN (
  SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS order_lines FROM order_line GROUP BY ol_w_id, ol_d_id, ol_o_id
) AS l ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
WHERE o_id IS NULL OR o_ol_cnt <> coalesce(order_lines, 0)
