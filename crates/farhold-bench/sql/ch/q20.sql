-- Q20: German suppliers with more than enough of an item. The original takes items whose data starts with co, one in 3,844;
-- here c is enough. Tie-break: the address.
SELECT su_name, su_address
FROM supplier, nation
WHERE su_suppkey IN (SELECT (s_i_id * s_w_id) % 10000
                     FROM stock, order_line
                     WHERE s_i_id IN (SELECT i_id FROM item WHERE i_data LIKE 'c%')
                       AND ol_i_id = s_i_id
                       AND ol_delivery_d > TIMESTAMP '2010-05-23 12:00:00'
                     GROUP BY s_i_id, s_w_id, s_quantity
                     HAVING 2 * s_quantity > sum(ol_quantity))
  AND su_nationkey = n_nationkey
  AND n_name = 'Germany'
ORDER BY su_name, su_address
