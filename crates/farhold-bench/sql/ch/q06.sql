-- Q6: revenue of delivered lines in a range of dates and quantities. The upper date is later than the original's.
SELECT sum(ol_amount) AS revenue
FROM order_line
WHERE ol_delivery_d >= TIMESTAMP '1999-01-01 00:00:00'
  AND ol_delivery_d < TIMESTAMP '2040-01-01 00:00:00'
  AND ol_quantity BETWEEN 1 AND 100000
