-- 3.3.2.2: d_next_o_id - 1 = max(o_id) = max(no_o_id) of each district.
-- The latter where there are new orders.
SELECT d_w_id, d_id, d_next_o_id, o_id, no_o_id
FROM district
LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS o_id FROM orders GROUP BY o_w_id, o_d_id) AS o
  ON o_w_id = d_w_id AND o_d_id = d_id
LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS no_o_id FROM new_order GROUP BY no_w_id, no_d_id) AS n
  ON no_w_id = d_w_id AND no_d_id = d_id
WHERE o_id IS NULL OR d_next_o_id - 1 <> o_id OR d_next_o_id - 1 <> coalesce(no_o_id, d_next_o_id - 1)
