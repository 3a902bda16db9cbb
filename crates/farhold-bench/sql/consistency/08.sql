-- 3.3.2.8: w_ytd = sum(h_amount) of each warehouse.
SELECT w_id, w_ytd, h_w_id, h_amount
FROM warehouse
FULL JOIN (SELECT h_w_id, sum(h_amount) AS h_amount FROM history GROUP BY h_w_id) AS h ON h_w_id = w_id
WHERE w_id IS NULL OR h_w_id IS NULL OR w_ytd <> h_amount
