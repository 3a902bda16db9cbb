-- 3.3.2.4: sum(o_ol_cnt) = number of order lines of each district.
SELECT o_w_id, o_d_id, ol_cnt, order_lines
FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS ol_cnt FROM orders GROUP BY o_w_id, o_d_id) AS o
FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS order_lines FROM order_line GROUP BY ol_w_id, ol_d_id) AS l
  ON ol_w_id = o_w_id AND ol_d_id = o_d_id
WHERE coalesce(ol_cnt, 0) <> coalesce(order_lines, 0)
