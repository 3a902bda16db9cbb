-- 3.3.2.5: an order has no carrier exactly if it is a new order.
SELECT o_w_id, o_d_id, o_id, o_carrier_id, no_w_id, no_d_id, no_o_id
FROM orders
FULL JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
WHERE o_id IS NULL OR (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)
