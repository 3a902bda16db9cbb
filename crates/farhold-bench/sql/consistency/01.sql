-- 3.3.2.1: w_ytd = sum(d_ytd) of each warehouse.
SELECT w_id, w_ytd, d_ytd
FROM warehouse
LEFT JOIN (SELECT d_w_id, sum(d_ytd) AS d_ytd FROM district GROUP BY d_w_id) AS d ON d_w_id = w_id
WHERE d_ytd IS NULL OR w_ytd <> d_ytd
