-- 3.3.2.11: orders less new orders = delivered orders of each district.
-- Delivered are seven tenths of the initial ones (2,100 of 3,000, one order a customer), and those that the customers'
-- delivery counts tell of.
SELECT c_w_id, c_d_id, customers, deliveries, order_count, new_orders
FROM (
  SELECT c_w_id, c_d_id, count(*) AS customers, sum(c_delivery_cnt) AS deliveries FROM customer GROUP BY c_w_id, c_d_id
) AS c
LEFT JOIN (SELECT o_w_id, o_d_id, count(*) AS order_count FROM orders GROUP BY o_w_id, o_d_id) AS o
  ON o_w_id = c_w_id AND o_d_id = c_d_id
LEFT JOIN (SELECT no_w_id, no_d_id, count(*) AS new_orders FROM new_order GROUP BY no_w_id, no_d_id) AS n
  ON no_w_id = c_w_id AND no_d_id = c_d_id
WHERE 10 * (coalesce(order_count, 0) - coalesce(new_orders, 0) - deliveries) <> 7 * customers
