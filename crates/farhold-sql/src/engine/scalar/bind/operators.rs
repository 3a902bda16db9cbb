//! Operators, comparisons, lists, LIKE and CASE.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value};

use super::super::{Arithmetic, Comparison, Function, Scalar};
use super::types::{common_number, fold_cast, fold_plain_cast, rank};
use super::{BindError, Binder, Bound, Result, known, number};
use crate::engine::{ColumnType, Datum};
use crate::value::ANY_LENGTH;
use crate::{SqlError, SqlState};

impl Binder<'_> {
    pub(super) fn unary(&mut self, op: UnaryOperator, inner: &Expr) -> Result<Bound> {
        match op {
            UnaryOperator::Not => {
                let bound = self.bind(inner)?;
                let scalar = self.boolean(bound, "NOT")?;
                Ok(boolean(Scalar::Not(Box::new(scalar))))
            }
            UnaryOperator::Minus => {
                // The smallest integers are written as the negation of a number that is one too large.
                if let Expr::Value(value) = inner
                    && let Value::Number(text, _) = &value.value
                {
                    return number(&format!("-{text}"));
                }
                let bound = self.bind(inner)?;
                match bound.data_type {
                    Some(data_type) if rank(data_type).is_some() => {
                        Ok(known(Scalar::Negate(Box::new(bound.scalar)), data_type))
                    }
                    _ => Err(BindError::Complex),
                }
            }
            UnaryOperator::Plus => self.bind(inner),
            _ => Err(BindError::Complex),
        }
    }

    pub(super) fn binary(&mut self, left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Bound> {
        let comparison = match op {
            BinaryOperator::Eq => Some(Comparison::Equal),
            BinaryOperator::NotEq => Some(Comparison::NotEqual),
            BinaryOperator::Lt => Some(Comparison::Less),
            BinaryOperator::LtEq => Some(Comparison::LessEqual),
            BinaryOperator::Gt => Some(Comparison::Greater),
            BinaryOperator::GtEq => Some(Comparison::GreaterEqual),
            _ => None,
        };
        if matches!(left, Expr::Tuple(_)) {
            return Err(BindError::Complex);
        }
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        if let Some(comparison) = comparison {
            return Ok(boolean(self.compare(comparison, left, right)?));
        }
        let arithmetic = match op {
            BinaryOperator::And => {
                let (a, b) = (self.boolean(left, "AND")?, self.boolean(right, "AND")?);
                return Ok(boolean(Scalar::And(Box::new(a), Box::new(b))));
            }
            BinaryOperator::Or => {
                let (a, b) = (self.boolean(left, "OR")?, self.boolean(right, "OR")?);
                return Ok(boolean(Scalar::Or(Box::new(a), Box::new(b))));
            }
            BinaryOperator::StringConcat => {
                let is_text = |side: &Bound| side.data_type.is_none_or(ColumnType::is_text);
                let is_bytea = |side: &Bound| side.data_type == Some(ColumnType::Bytea);
                if !(is_text(&left) || is_text(&right)) || is_bytea(&left) || is_bytea(&right) {
                    return Err(BindError::Complex);
                }
                let list = vec![self.text(left)?, self.text(right)?];
                return Ok(known(Scalar::Call(Function::Concat, list), ColumnType::Text));
            }
            BinaryOperator::Plus => Arithmetic::Add,
            BinaryOperator::Minus => Arithmetic::Subtract,
            BinaryOperator::Multiply => Arithmetic::Multiply,
            BinaryOperator::Divide => Arithmetic::Divide,
            BinaryOperator::Modulo => Arithmetic::Remainder,
            _ => return Err(BindError::Complex),
        };
        self.arithmetic(arithmetic, left, right)
    }

    pub(super) fn arithmetic(&mut self, op: Arithmetic, left: Bound, right: Bound) -> Result<Bound> {
        use ColumnType as T;
        match (op, left.data_type, right.data_type) {
            (Arithmetic::Add | Arithmetic::Subtract, Some(T::Date), Some(T::SmallInt | T::Int)) => {
                let days = if op == Arithmetic::Add { right.scalar } else { Scalar::Negate(Box::new(right.scalar)) };
                return Ok(known(Scalar::DatePlusDays(Box::new(left.scalar), Box::new(days)), T::Date));
            }
            (Arithmetic::Add, Some(T::SmallInt | T::Int), Some(T::Date)) => {
                return Ok(known(Scalar::DatePlusDays(Box::new(right.scalar), Box::new(left.scalar)), T::Date));
            }
            (Arithmetic::Subtract, Some(T::Date), Some(T::Date)) => {
                return Ok(known(Scalar::DateMinusDate(Box::new(left.scalar), Box::new(right.scalar)), T::Int));
            }
            _ => {}
        }
        let data_type = match (left.data_type, right.data_type) {
            // The other operand may be an interval.
            (Some(T::Date | T::Timestamp | T::Timestamptz), _) | (_, Some(T::Date | T::Timestamp | T::Timestamptz)) => {
                return Err(BindError::Complex);
            }
            (Some(a), Some(b)) => common_number(a, b).ok_or_else(|| no_operator(op, a, b))?,
            (Some(a), None) | (None, Some(a)) if rank(a).is_some() => a,
            _ => return Err(BindError::Complex),
        };
        let resolved = match data_type {
            T::Decimal { .. } => T::Decimal { precision: 38, scale: 16 },
            other => other,
        };
        let side = |binder: &mut Self, bound: Bound| match bound.data_type {
            None => binder.resolve(bound.scalar, resolved),
            Some(_) => Ok(bound.scalar),
        };
        let (a, b) = (side(self, left)?, side(self, right)?);
        Ok(known(Scalar::Arithmetic(op, data_type, Box::new(a), Box::new(b)), data_type))
    }

    pub(super) fn text(&mut self, bound: Bound) -> Result<Scalar> {
        match bound.data_type {
            None => self.resolve(bound.scalar, ColumnType::Text),
            Some(t) if t.is_text() => Ok(bound.scalar),
            Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to: ColumnType::Text, cut: false }),
        }
    }

    pub(super) fn compare(&mut self, comparison: Comparison, left: Bound, right: Bound) -> Result<Scalar> {
        let (a, b) = self.unify(left, right)?;
        Ok(Scalar::Compare(comparison, Box::new(a), Box::new(b)))
    }

    pub(super) fn distinct(&mut self, a: &Expr, b: &Expr, negated: bool) -> Result<Bound> {
        let (a, b) = (self.bind(a)?, self.bind(b)?);
        let (a, b) = self.unify(a, b)?;
        Ok(boolean(not_if(negated, Scalar::DistinctFrom(Box::new(a), Box::new(b)))))
    }

    pub(super) fn is_null(&mut self, inner: &Expr, negated: bool) -> Result<Bound> {
        let bound = self.bind(inner)?;
        let scalar = match bound.data_type {
            None => self.resolve(bound.scalar, ColumnType::Text)?,
            Some(_) => bound.scalar,
        };
        Ok(boolean(not_if(negated, Scalar::IsNull(Box::new(scalar)))))
    }

    pub(super) fn is_boolean(&mut self, inner: &Expr, wanted: bool, negated: bool) -> Result<Bound> {
        let bound = self.bind(inner)?;
        let scalar = self.boolean(bound, "IS TRUE")?;
        Ok(boolean(not_if(negated, Scalar::IsBoolean(Box::new(scalar), wanted))))
    }

    pub(super) fn in_list(&mut self, needle: &Expr, list: &[Expr], negated: bool) -> Result<Bound> {
        use ColumnType as T;
        // Each item may need its own common type with the left operand. So a list becomes comparisons linked by OR,
        // unless all can be compared with the same column.
        let subject = self.bind(needle)?;
        let mut compared = Vec::with_capacity(list.len());
        let mut uniform = true;
        let items_bound = list.iter().map(|item| self.bind(item)).collect::<Result<Vec<_>>>()?;
        // The constants of a list share one type. Only the planner finds it, unless it is obviously that of the left
        // operand.
        let is_open = |bound: &Bound| bound.data_type.is_none() && matches!(bound.scalar, Scalar::Parameter(_));
        let is_other = |bound: &Bound| bound.data_type.is_some() && bound.data_type != subject.data_type;
        if items_bound.len() > 1
            && items_bound.iter().any(is_open)
            && (subject.data_type.is_none() || items_bound.iter().any(is_other))
        {
            return Err(BindError::Complex);
        }
        // Several constants share a type with a REAL on the left: exact numbers become REAL.
        let is_real = list.len() > 1
            && subject.data_type == Some(ColumnType::Real)
            && items_bound.iter().all(|item| item.scalar.is_constant() && item.data_type != Some(ColumnType::Double));
        // Texts get the type of the left operand.
        let is_constant = |item: &Bound| matches!(item.scalar, Scalar::Parameter(_)) || item.scalar.is_constant();
        let text = match subject.data_type {
            Some(T::Char(_)) => Some(T::Char(ANY_LENGTH)),
            Some(T::Varchar(_)) => Some(T::Text),
            _ => None,
        };
        let text = text.filter(|_| list.len() > 1 && items_bound.iter().all(is_constant));
        for mut item in items_bound {
            if let Some(to) = text
                && item.data_type.is_some_and(ColumnType::is_text)
            {
                item = known(fold_cast(item.scalar, to, self.zone)?, to);
            }
            if is_real && item.data_type.is_some_and(|t| t != ColumnType::Real && rank(t).is_some()) {
                item = known(fold_plain_cast(item.scalar, ColumnType::Real, self.zone)?, ColumnType::Real);
            }
            let (a, b) = self.unify(subject.clone(), item)?;
            uniform &= matches!((&a, &subject.scalar), (Scalar::Column(x), Scalar::Column(y)) if x == y);
            compared.push((a, b));
        }
        let scalar = if uniform && !compared.is_empty() {
            let items = compared.into_iter().map(|(_, item)| item).collect();
            Scalar::InList(Box::new(subject.scalar), items)
        } else {
            let equal = |(a, b)| Scalar::Compare(Comparison::Equal, Box::new(a), Box::new(b));
            any_of(compared.into_iter().map(equal).collect()).ok_or(BindError::Complex)?
        };
        Ok(boolean(not_if(negated, scalar)))
    }

    pub(super) fn like(
        &mut self,
        (text, pattern): (&Expr, &Expr),
        negated: bool,
        any_case: bool,
        escape: Option<&ast::ValueWithSpan>,
    ) -> Result<Bound> {
        let escape = match escape.map(|v| &v.value) {
            None => Some('\\'),
            Some(Value::SingleQuotedString(text)) if text.chars().count() <= 1 => text.chars().next(),
            Some(_) => return Err(BindError::Complex),
        };
        let (text, pattern) = (self.bind(text)?, self.bind(pattern)?);
        for side in [&text, &pattern] {
            if side.data_type.is_some_and(|t| !t.is_text()) {
                return Err(BindError::Complex);
            }
        }
        let (text, pattern) = (self.text(text)?, self.text(pattern)?);
        let scalar = Scalar::Like { text: Box::new(text), pattern: Box::new(pattern), any_case, escape };
        Ok(boolean(not_if(negated, scalar)))
    }

    pub(super) fn case(
        &mut self,
        operand: Option<&Expr>,
        whens: &[ast::CaseWhen],
        otherwise: Option<&Expr>,
    ) -> Result<Bound> {
        let operand = operand.map(|o| self.bind(o)).transpose()?;
        let mut conditions = Vec::with_capacity(whens.len());
        let mut results = Vec::with_capacity(whens.len() + 1);
        for when in whens {
            let condition = self.bind(&when.condition)?;
            conditions.push(match &operand {
                Some(operand) => self.compare(Comparison::Equal, operand.clone(), condition)?,
                None => self.boolean(condition, "CASE/WHEN")?,
            });
            results.push(self.bind(&when.result)?);
        }
        let otherwise = match otherwise {
            Some(otherwise) => self.bind(otherwise)?,
            None => Bound { scalar: Scalar::Literal(Datum::Null), data_type: None },
        };
        // PostgreSQL considers ELSE first.
        results.insert(0, otherwise);
        let (scalars, data_type) = self.unify_all(results)?;
        let mut scalars = scalars.into_iter();
        let otherwise = scalars.next().unwrap_or(Scalar::Literal(Datum::Null));
        let whens = conditions.into_iter().zip(scalars).collect();
        Ok(Bound { scalar: Scalar::Case(whens, Box::new(otherwise)), data_type })
    }
}

pub(super) fn boolean(scalar: Scalar) -> Bound {
    known(scalar, ColumnType::Boolean)
}

/// Combines all parts by OR to a tree of few levels: a long list as a chain would need more stack than a thread has.
fn any_of(mut parts: Vec<Scalar>) -> Option<Scalar> {
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        parts = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(one) = rest.next() {
            parts.push(match rest.next() {
                Some(other) => Scalar::Or(Box::new(one), Box::new(other)),
                None => one,
            });
        }
    }
    parts.pop()
}

pub(super) fn not_if(negated: bool, scalar: Scalar) -> Scalar {
    if negated { Scalar::Not(Box::new(scalar)) } else { scalar }
}

fn no_operator(op: Arithmetic, a: ColumnType, b: ColumnType) -> SqlError {
    let sign = match op {
        Arithmetic::Add => '+',
        Arithmetic::Subtract => '-',
        Arithmetic::Multiply => '*',
        Arithmetic::Divide => '/',
        Arithmetic::Remainder => '%',
    };
    SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: {a} {sign} {b}"))
        .with_hint("You might need to add explicit type casts.")
}
