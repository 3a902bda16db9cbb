-- Q11: items of German suppliers that are ordered most. Tie-break: the item. The original asks for more than 0.5 % of all
-- orders, which no item has at its own cardinalities; here it is 0.05 %, and in integers, so that it is exact.
SELECT s_i_id, sum(s_order_cnt) AS ordercount
FROM stock, supplier, nation
WHERE (s_w_id * s_i_id) % 10000 = su_suppkey
  AND su_nationkey = n_nationkey
  AND n_name = 'Germany'
GROUP BY s_i_id
HAVING sum(s_order_cnt) * 2000 > (SELECT sum(s_order_cnt)
                                  FROM stock, supplier, nation
                                  WHERE (s_w_id * s_i_id) % 10000 = su_suppkey
                                    AND su_nationkey = n_nationkey
                                    AND n_name = 'Germany')
ORDER BY ordercount DESC, s_i_id
