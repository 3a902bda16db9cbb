-- 3.3.2.3: the new orders of each district are numbered without a gap.
SELECT no_w_id, no_d_id, min(no_o_id) AS first_o_id, max(no_o_id) AS last_o_id, count(*) AS new_orders
FROM new_order
GROUP BY no_w_id, no_d_id
HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)
