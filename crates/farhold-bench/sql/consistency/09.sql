-- 3.3.2.9: d_ytd = sum(h_amount) of each district.
SELECT d_w_id, d_id, d_ytd, h_w_id, h_d_id, h_amount
FROM district
FULL JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS h_amount FROM history GROUP BY h_w_id, h_d_id) AS h
  ON h_w_id = d_w_id AND h_d_id = d_id
WHERE d_id IS NULL OR h_d_id IS NULL OR d_ytd <> h_amount
