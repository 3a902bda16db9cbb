-- 3.3.2.12: c_balance + c_ytd_payment = sum(ol_amount) of the customer's delivered lines.
SELECT c_w_id, c_d_id, c_id, c_balance, c_ytd_payment, delivered
FROM customer
LEFT JOIN (
  SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS delivered
  FROM orders
  JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
  WHERE ol_delivery_d IS NOT NULL
  GROUP BY o_w_id, o_d_id, o_c_id
) AS l ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
WHERE c_balance + c_ytd_payment <> coalesce(delivered, 0)
