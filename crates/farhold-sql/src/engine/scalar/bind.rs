//! From a parsed expression to a [`Scalar`]: names to columns, types as PostgreSQL resolves them.

use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, UnaryOperator, Value,
};

use super::{Arithmetic, Comparison, Function, Parameters, Scalar};
use crate::engine::sequence::bind as bind_sequence;
use crate::engine::types::{
    ANY_LENGTH, cast, exact_decimal, from_sql, parse_datum, parse_stored, round_timestamp, timestamp_digits,
    type_of_parameter,
};
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// Why an expression was not bound.
#[derive(Debug)]
pub(crate) enum BindError {
    /// It may be right, but it takes a planner.
    Complex,
    /// It is wrong.
    Wrong(SqlError),
}

impl From<SqlError> for BindError {
    fn from(error: SqlError) -> Self {
        Self::Wrong(error)
    }
}

/// A bound expression and its type; `None` for NULL, a bare string or a parameter that nothing has given a type.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) scalar: Scalar,
    pub(crate) data_type: Option<ColumnType>,
}

/// A column that expressions may name.
#[derive(Clone, Debug)]
pub(crate) struct ColumnRef {
    /// The table's name or alias.
    pub(crate) qualifier: String,
    pub(crate) name: String,
    pub(crate) data_type: ColumnType,
}

/// What names mean, and what is known of the parameters' types.
pub(crate) struct Binder<'a> {
    /// The row's columns: [`Scalar::Column`] is a position here.
    pub(crate) columns: &'a [ColumnRef],
    /// Types of `$1`, `$2`, …; grows as they are met.
    pub(crate) parameters: &'a mut Vec<Option<ColumnType>>,
}

/// An identifier as the catalog has it: folded to lower case unless quoted.
pub(crate) fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

type Result<T> = std::result::Result<T, BindError>;

impl Binder<'_> {
    /// Binds `expression` and gives it the type `to`, as an assignment to such a column does.
    pub(crate) fn bind_to(&mut self, expression: &Expr, to: ColumnType) -> Result<Scalar> {
        let bound = self.bind(expression)?;
        self.assign(bound, to)
    }

    /// `bound` as a value of type `to`.
    pub(crate) fn assign(&mut self, bound: Bound, to: ColumnType) -> Result<Scalar> {
        match bound.data_type {
            None => self.stored(bound.scalar, to),
            Some(from) if same_kind(from, to) => Ok(bound.scalar),
            Some(from) if !assignable(from, to) => Err(BindError::Wrong(SqlError::new(
                SqlState::DATATYPE_MISMATCH,
                format!("a value of type {from} cannot be assigned to a column of type {to}"),
            ))),
            Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to, cut: false }),
        }
    }

    /// Binds a condition.
    pub(crate) fn bind_condition(&mut self, expression: &Expr) -> Result<Scalar> {
        let bound = self.bind(expression)?;
        self.boolean(bound, "WHERE")
    }

    /// Binds an expression.
    #[recursive::recursive]
    pub(crate) fn bind(&mut self, expression: &Expr) -> Result<Bound> {
        match expression {
            Expr::Nested(inner) => self.bind(inner),
            Expr::Identifier(name) if name.quote_style.is_none() && is_session_word(&name.value) => {
                Err(BindError::Complex)
            }
            Expr::Identifier(name) => self.column(None, name),
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [qualifier, name] => self.column(Some(qualifier), name),
                [schema, qualifier, name] if fold(schema) == "public" => self.column(Some(qualifier), name),
                _ => Err(BindError::Complex),
            },
            Expr::Value(value) => self.value(&value.value),
            Expr::TypedString(typed) => {
                let to = from_sql(&typed.data_type).map_err(|_| BindError::Complex)?;
                match &typed.value.value {
                    Value::SingleQuotedString(text) => {
                        let literal = Scalar::Literal(parse_datum(text, to)?);
                        Ok(known(with_digits(literal, &typed.data_type), to))
                    }
                    _ => Err(BindError::Complex),
                }
            }
            Expr::UnaryOp { op, expr } => self.unary(*op, expr),
            Expr::BinaryOp { left, op, right } => self.binary(left, op, right),
            Expr::IsNull(inner) | Expr::IsUnknown(inner) => self.is_null(inner, false),
            Expr::IsNotNull(inner) | Expr::IsNotUnknown(inner) => self.is_null(inner, true),
            Expr::IsTrue(inner) => self.is_boolean(inner, true, false),
            Expr::IsNotTrue(inner) => self.is_boolean(inner, true, true),
            Expr::IsFalse(inner) => self.is_boolean(inner, false, false),
            Expr::IsNotFalse(inner) => self.is_boolean(inner, false, true),
            Expr::IsDistinctFrom(a, b) => self.distinct(a, b, false),
            Expr::IsNotDistinctFrom(a, b) => self.distinct(a, b, true),
            Expr::Between { expr, negated, low, high } => {
                let subject = self.bind(expr)?;
                let (low, high) = (self.bind(low)?, self.bind(high)?);
                let least = self.compare(Comparison::GreaterEqual, subject.clone(), low)?;
                let most = self.compare(Comparison::LessEqual, subject, high)?;
                Ok(boolean(not_if(*negated, Scalar::And(Box::new(least), Box::new(most)))))
            }
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated),
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like((expr, pattern), *negated, false, escape_char.as_ref())
            }
            Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like((expr, pattern), *negated, true, escape_char.as_ref())
            }
            Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                let to = from_sql(data_type).map_err(|_| BindError::Complex)?;
                let bound = self.bind(expr)?;
                let scalar = match bound.data_type {
                    None => self.stored(bound.scalar, to)?,
                    Some(_) => bound.scalar,
                };
                Ok(known(with_digits(fold_cast(scalar, to)?, data_type), to))
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref())
            }
            Expr::Function(function) => self.function(function),
            _ => Err(BindError::Complex),
        }
    }

    fn column(&mut self, qualifier: Option<&Ident>, name: &Ident) -> Result<Bound> {
        let (qualifier, name) = (qualifier.map(fold), fold(name));
        let mut found = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, c)| c.name == name && qualifier.as_ref().is_none_or(|q| *q == c.qualifier));
        let Some((index, column)) = found.next() else {
            let full = qualifier.as_ref().map_or_else(|| format!("\"{name}\""), |q| format!("{q}.{name}"));
            if let Some(q) = qualifier
                && !self.columns.iter().any(|c| c.qualifier == q)
            {
                let message = format!("missing FROM-clause entry for table \"{q}\"");
                return Err(SqlError::new(SqlState::UNDEFINED_TABLE, message).into());
            }
            return Err(SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column {full} does not exist")).into());
        };
        if qualifier.is_none() && found.next().is_some_and(|(_, other)| other.qualifier != "excluded") {
            return Err(
                SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{name}\" is ambiguous")).into()
            );
        }
        Ok(known(Scalar::Column(index), column.data_type))
    }

    fn value(&mut self, value: &Value) -> Result<Bound> {
        Ok(match value {
            Value::Number(text, _) => number(text)?,
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => {
                Bound { scalar: Scalar::Literal(Datum::Text(text.clone())), data_type: None }
            }
            Value::DollarQuotedString(text) => {
                Bound { scalar: Scalar::Literal(Datum::Text(text.value.clone())), data_type: None }
            }
            Value::Boolean(v) => boolean(Scalar::Literal(Datum::Boolean(*v))),
            Value::Null => Bound { scalar: Scalar::Literal(Datum::Null), data_type: None },
            Value::Placeholder(text) => {
                let index = parameter_index(text)?;
                if self.parameters.len() <= index {
                    self.parameters.resize(index + 1, None);
                }
                Bound { scalar: Scalar::Parameter(index), data_type: self.parameters[index] }
            }
            _ => return Err(BindError::Complex),
        })
    }

    /// Gives an expression of unknown type the type `to`, as a cast or a column does.
    fn stored(&mut self, scalar: Scalar, to: ColumnType) -> Result<Scalar> {
        match scalar {
            Scalar::Literal(Datum::Text(text)) => Ok(Scalar::Literal(parse_stored(&text, to)?)),
            other => self.resolve(other, to),
        }
    }

    /// Gives an expression of unknown type the type `to`.
    fn resolve(&mut self, scalar: Scalar, to: ColumnType) -> Result<Scalar> {
        match scalar {
            Scalar::Literal(Datum::Text(text)) => {
                let datum = parse_datum(&text, to)?;
                Ok(Scalar::Literal(datum))
            }
            Scalar::Parameter(index) => match self.parameters[index] {
                None => {
                    self.parameters[index] = Some(type_of_parameter(to));
                    Ok(Scalar::Parameter(index))
                }
                Some(from) if same_kind(from, to) => Ok(Scalar::Parameter(index)),
                Some(_) => Ok(Scalar::Cast { inner: Box::new(Scalar::Parameter(index)), to, cut: false }),
            },
            other => Ok(other),
        }
    }

    fn boolean(&mut self, bound: Bound, place: &str) -> Result<Scalar> {
        match bound.data_type {
            Some(ColumnType::Boolean) => Ok(bound.scalar),
            None => self.resolve(bound.scalar, ColumnType::Boolean),
            Some(other) => Err(SqlError::new(
                SqlState::DATATYPE_MISMATCH,
                format!("argument of {place} must be type boolean, not type {other}"),
            )
            .into()),
        }
    }

    fn unary(&mut self, op: UnaryOperator, inner: &Expr) -> Result<Bound> {
        match op {
            UnaryOperator::Not => {
                let bound = self.bind(inner)?;
                let scalar = self.boolean(bound, "NOT")?;
                Ok(boolean(Scalar::Not(Box::new(scalar))))
            }
            UnaryOperator::Minus => {
                // The least integers are written as the negation of a number one too large.
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

    fn binary(&mut self, left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Bound> {
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

    fn arithmetic(&mut self, op: Arithmetic, left: Bound, right: Bound) -> Result<Bound> {
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
            // There may be an interval in it.
            (Some(T::Date | T::Timestamp), _) | (_, Some(T::Date | T::Timestamp)) => return Err(BindError::Complex),
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

    fn text(&mut self, bound: Bound) -> Result<Scalar> {
        match bound.data_type {
            None => self.resolve(bound.scalar, ColumnType::Text),
            Some(t) if t.is_text() => Ok(bound.scalar),
            Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to: ColumnType::Text, cut: false }),
        }
    }

    /// Both sides as values of one kind.
    fn unify(&mut self, left: Bound, right: Bound) -> Result<(Scalar, Scalar)> {
        use ColumnType as T;
        let (a, b) = match (left.data_type, right.data_type) {
            (None, None) => (T::Text, T::Text),
            (Some(t), None) | (None, Some(t)) => (t, t),
            (Some(a), Some(b)) => (a, b),
        };
        let common = match (a, b) {
            (a, b) if same_kind(a, b) && !matches!((a, b), (T::Char(_), _) | (_, T::Char(_))) => None,
            // Beside TEXT a CHAR is its text, which has no blanks at its end; beside VARCHAR those of the other side do not count either.
            (T::Char(_), T::Char(_) | T::Text) | (T::Text, T::Char(_)) => None,
            (T::Char(_), b) if b.is_text() => Some(T::Char(ANY_LENGTH)),
            (a, T::Char(_)) if a.is_text() => Some(T::Char(ANY_LENGTH)),
            (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => Some(T::Timestamp),
            (a, b) => match common_number(a, b) {
                Some(T::Decimal { .. }) => Some(T::Decimal { precision: 38, scale: 0 }),
                Some(common) => Some(common),
                None => {
                    let message = format!("operator does not exist: {a} = {b}");
                    return Err(SqlError::new(SqlState::UNDEFINED_FUNCTION, message)
                        .with_hint("You might need to add explicit type casts.")
                        .into());
                }
            },
        };
        let mut side = |bound: Bound, own: ColumnType| -> Result<Scalar> {
            let scalar = match bound.data_type {
                None => self.resolve(bound.scalar, own)?,
                Some(_) => bound.scalar,
            };
            Ok(match common {
                Some(T::Char(_)) if matches!(own, T::Char(_)) => scalar,
                Some(to @ T::Char(_)) => fold_cast(scalar, to)?,
                // A decimal side stays as it is: it compares at any scale.
                Some(T::Decimal { .. }) if matches!(own, T::Decimal { .. }) => scalar,
                Some(to) if !same_kind(own, to) => fold_plain_cast(scalar, to)?,
                _ => scalar,
            })
        };
        Ok((side(left, a)?, side(right, b)?))
    }

    fn compare(&mut self, comparison: Comparison, left: Bound, right: Bound) -> Result<Scalar> {
        let (a, b) = self.unify(left, right)?;
        Ok(Scalar::Compare(comparison, Box::new(a), Box::new(b)))
    }

    fn distinct(&mut self, a: &Expr, b: &Expr, negated: bool) -> Result<Bound> {
        let (a, b) = (self.bind(a)?, self.bind(b)?);
        let (a, b) = self.unify(a, b)?;
        Ok(boolean(not_if(negated, Scalar::DistinctFrom(Box::new(a), Box::new(b)))))
    }

    fn is_null(&mut self, inner: &Expr, negated: bool) -> Result<Bound> {
        let bound = self.bind(inner)?;
        let scalar = match bound.data_type {
            None => self.resolve(bound.scalar, ColumnType::Text)?,
            Some(_) => bound.scalar,
        };
        Ok(boolean(not_if(negated, Scalar::IsNull(Box::new(scalar)))))
    }

    fn is_boolean(&mut self, inner: &Expr, wanted: bool, negated: bool) -> Result<Bound> {
        let bound = self.bind(inner)?;
        let scalar = self.boolean(bound, "IS TRUE")?;
        Ok(boolean(not_if(negated, Scalar::IsBoolean(Box::new(scalar), wanted))))
    }

    fn in_list(&mut self, needle: &Expr, list: &[Expr], negated: bool) -> Result<Bound> {
        use ColumnType as T;
        // Each item may need its own common type, so a list is comparisons linked by OR unless all are of one kind.
        let subject = self.bind(needle)?;
        let mut compared = Vec::with_capacity(list.len());
        let mut uniform = true;
        let items_bound = list.iter().map(|item| self.bind(item)).collect::<Result<Vec<_>>>()?;
        // Constants of a list have one type: the planner knows which, unless it is plainly that of what is looked for.
        let is_open = |bound: &Bound| bound.data_type.is_none() && matches!(bound.scalar, Scalar::Parameter(_));
        let is_other = |bound: &Bound| bound.data_type.is_some() && bound.data_type != subject.data_type;
        if items_bound.len() > 1
            && items_bound.iter().any(is_open)
            && (subject.data_type.is_none() || items_bound.iter().any(is_other))
        {
            return Err(BindError::Complex);
        }
        // Several constants have one type with a REAL before them, and numbers that are exact become REAL by that.
        let is_real = list.len() > 1
            && subject.data_type == Some(ColumnType::Real)
            && items_bound.iter().all(|item| item.scalar.is_constant() && item.data_type != Some(ColumnType::Double));
        // Of texts it is the type of what is looked for.
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
                item = known(fold_cast(item.scalar, to)?, to);
            }
            if is_real && item.data_type.is_some_and(|t| t != ColumnType::Real && rank(t).is_some()) {
                item = known(fold_plain_cast(item.scalar, ColumnType::Real)?, ColumnType::Real);
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

    fn like(
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

    fn case(&mut self, operand: Option<&Expr>, whens: &[ast::CaseWhen], otherwise: Option<&Expr>) -> Result<Bound> {
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
        results.push(match otherwise {
            Some(otherwise) => self.bind(otherwise)?,
            None => Bound { scalar: Scalar::Literal(Datum::Null), data_type: None },
        });
        let (mut scalars, data_type) = self.unify_all(results)?;
        let otherwise = scalars.pop().unwrap_or(Scalar::Literal(Datum::Null));
        let whens = conditions.into_iter().zip(scalars).collect();
        Ok(Bound { scalar: Scalar::Case(whens, Box::new(otherwise)), data_type })
    }

    /// All of `list` as values of one type: CASE, COALESCE, GREATEST.
    fn unify_all(&mut self, list: Vec<Bound>) -> Result<(Vec<Scalar>, Option<ColumnType>)> {
        let mut common: Option<ColumnType> = None;
        for data_type in list.iter().filter_map(|b| b.data_type) {
            common = Some(match common {
                None => data_type,
                Some(t) => common_type(t, data_type).ok_or_else(|| {
                    SqlError::new(SqlState::DATATYPE_MISMATCH, format!("types {t} and {data_type} cannot be matched"))
                })?,
            });
        }
        // Texts have the first one's type, unless one is TEXT beside VARCHARs: as CHARs they have no blanks at their ends.
        let is_char = matches!(list.iter().find_map(|bound| bound.data_type), Some(ColumnType::Char(_)));
        // CHAR(n) and VARCHAR(n) have their length only where all are of the one type.
        if let Some(to) = common.filter(|to| to.is_text())
            && list.iter().any(|bound| bound.data_type != Some(to))
        {
            common = Some(ColumnType::Text);
        }
        let Some(to) = common else {
            let scalars = list.into_iter().map(|b| self.resolve(b.scalar, ColumnType::Text)).collect::<Result<_>>()?;
            return Ok((scalars, Some(ColumnType::Text)));
        };
        // A decimal keeps the digits that it has: the type of a computed one says nothing of them.
        let cast_to = match to {
            ColumnType::Decimal { .. } => ColumnType::Decimal { precision: 38, scale: 0 },
            other => other,
        };
        let scalars = list
            .into_iter()
            .map(|bound| match bound.data_type {
                None if is_char && matches!(bound.scalar, Scalar::Parameter(_)) => {
                    self.resolve(bound.scalar, ColumnType::Char(ANY_LENGTH))
                }
                Some(from) if is_char && from.is_text() && !matches!(from, ColumnType::Char(_)) => {
                    fold_cast(bound.scalar, ColumnType::Char(ANY_LENGTH))
                }
                None => self.resolve(bound.scalar, to),
                Some(from) if same_kind(from, to) => Ok(bound.scalar),
                Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to: cast_to, cut: false }),
            })
            .collect::<Result<_>>()?;
        Ok((scalars, Some(to)))
    }

    fn function(&mut self, function: &ast::Function) -> Result<Bound> {
        let name = built_in_name(function).ok_or(BindError::Complex)?;
        if function.over.is_some() || function.filter.is_some() || !function.within_group.is_empty() {
            return Err(BindError::Complex);
        }
        let mut arguments = Vec::new();
        match &function.args {
            FunctionArguments::None => {}
            FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => {
                for argument in &list.args {
                    let FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) = argument else {
                        return Err(BindError::Complex);
                    };
                    arguments.push(self.bind(without_regclass(argument))?);
                }
            }
            _ => return Err(BindError::Complex),
        }
        let name = fold(name);
        if let Some((call, types)) = bind_sequence(&name, arguments.len()) {
            let arguments = arguments.into_iter().zip(types).map(|(argument, to)| self.assign(argument, *to));
            let arguments = arguments.collect::<Result<Vec<_>>>()?;
            return Ok(known(Scalar::Sequence(call, arguments), ColumnType::BigInt));
        }
        let text_call =
            |binder: &mut Self, f: Function, to: ColumnType, mut arguments: Vec<Bound>| match arguments.pop() {
                Some(a) if arguments.is_empty() && a.data_type.is_none_or(ColumnType::is_text) => {
                    let argument = binder.text(a)?;
                    Ok(known(Scalar::Call(f, vec![argument]), to))
                }
                _ => Err(BindError::Complex),
            };
        match (name.as_str(), arguments.len()) {
            ("lower", 1) => text_call(self, Function::Lower, ColumnType::Text, arguments),
            ("upper", 1) => text_call(self, Function::Upper, ColumnType::Text, arguments),
            ("length" | "char_length" | "character_length", 1) => {
                text_call(self, Function::Length, ColumnType::Int, arguments)
            }
            ("now" | "current_timestamp" | "localtimestamp" | "transaction_timestamp", 0) => {
                Ok(known(Scalar::Call(Function::TransactionTime, Vec::new()), ColumnType::Timestamp))
            }
            ("statement_timestamp", 0) => {
                Ok(known(Scalar::Call(Function::StatementTime, Vec::new()), ColumnType::Timestamp))
            }
            ("current_date", 0) => {
                let now = Scalar::Call(Function::TransactionTime, Vec::new());
                Ok(known(Scalar::Cast { inner: Box::new(now), to: ColumnType::Date, cut: false }, ColumnType::Date))
            }
            ("abs", 1) => match arguments.pop() {
                Some(Bound { scalar, data_type: Some(t) }) if rank(t).is_some() => {
                    Ok(known(Scalar::Call(Function::Abs, vec![scalar]), t))
                }
                _ => Err(BindError::Complex),
            },
            ("coalesce", 1..) => {
                let (scalars, data_type) = self.unify_all(arguments)?;
                Ok(Bound { scalar: Scalar::Coalesce(scalars), data_type })
            }
            ("greatest" | "least", 1..) => {
                let (scalars, data_type) = self.unify_all(arguments)?;
                let f = if name == "greatest" { Function::Greatest } else { Function::Least };
                Ok(Bound { scalar: Scalar::Call(f, scalars), data_type })
            }
            ("nullif", 2) => {
                let second = arguments.pop().ok_or(BindError::Complex)?;
                let first = arguments.pop().ok_or(BindError::Complex)?;
                let types = (first.data_type, second.data_type);
                let (a, b) = self.unify(first, second)?;
                let data_type = type_of_null_if(types);
                let scalar = Scalar::NullIf(Box::new(a), Box::new(b));
                // What became another type only to be compared becomes again what it was.
                let becomes_again = matches!(types, (Some(a), Some(b)) if is_kept_by_null_if(a, b));
                Ok(known(if becomes_again { fold_plain_cast(scalar, data_type)? } else { scalar }, data_type))
            }
            _ => Err(BindError::Complex),
        }
    }
}

/// The name of a function that is called as one of the system's own: alone, or as one of `pg_catalog`.
pub(crate) fn built_in_name(function: &ast::Function) -> Option<&ast::Ident> {
    match function.name.0.as_slice() {
        [ast::ObjectNamePart::Identifier(name)] => Some(name),
        [ast::ObjectNamePart::Identifier(schema), ast::ObjectNamePart::Identifier(name)]
            if fold(schema) == "pg_catalog" =>
        {
            Some(name)
        }
        _ => None,
    }
}

/// `'name'::regclass` is the name.
pub(crate) fn without_regclass(argument: &Expr) -> &Expr {
    match argument {
        Expr::Cast { expr, data_type: ast::DataType::Regclass, .. } => expr,
        other => other,
    }
}

/// Words that are functions without parentheses.
fn is_session_word(word: &str) -> bool {
    matches!(
        word.to_ascii_lowercase().as_str(),
        "current_user" | "session_user" | "user" | "current_role" | "current_catalog" | "current_schema"
    )
}

/// The position of `$n`.
pub(crate) fn parameter_index(text: &str) -> std::result::Result<usize, SqlError> {
    text.strip_prefix('$')
        .and_then(|n| n.parse::<usize>().ok())
        .filter(|n| (1..=65_535).contains(n))
        .map(|n| n - 1)
        .ok_or_else(|| SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {text}")))
}

fn number(text: &str) -> Result<Bound> {
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        if let Ok(v) = text.parse::<i32>() {
            return Ok(known(Scalar::Literal(Datum::Int(v)), ColumnType::Int));
        }
        if let Ok(v) = text.parse::<i64>() {
            return Ok(known(Scalar::Literal(Datum::BigInt(v)), ColumnType::BigInt));
        }
    }
    match exact_decimal(text) {
        Some(datum @ Datum::Decimal { scale, .. }) => {
            Ok(known(Scalar::Literal(datum), ColumnType::Decimal { precision: 38, scale }))
        }
        // More than a decimal holds.
        _ => Ok(known(Scalar::Literal(parse_datum(text, ColumnType::Double)?), ColumnType::Double)),
    }
}

fn known(scalar: Scalar, data_type: ColumnType) -> Bound {
    Bound { scalar, data_type: Some(data_type) }
}

fn boolean(scalar: Scalar) -> Bound {
    known(scalar, ColumnType::Boolean)
}

/// All of them by OR, as a tree of few levels: a long list as a chain takes more stack than a thread has.
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

fn not_if(negated: bool, scalar: Scalar) -> Scalar {
    if negated { Scalar::Not(Box::new(scalar)) } else { scalar }
}

/// An explicit cast, done now if it can be.
fn fold_cast(scalar: Scalar, to: ColumnType) -> Result<Scalar> {
    let literal = matches!(scalar, Scalar::Literal(_));
    let cast = Scalar::Cast { inner: Box::new(scalar), to, cut: true };
    Ok(if literal { Scalar::Literal(cast.evaluate(&[], Parameters::NONE)?) } else { cast })
}

/// A timestamp with the digits behind the second that its type's name says.
fn with_digits(scalar: Scalar, data_type: &ast::DataType) -> Scalar {
    match (timestamp_digits(data_type), scalar) {
        (None, scalar) => scalar,
        (Some(digits), Scalar::Literal(Datum::Timestamp(moment))) => {
            Scalar::Literal(Datum::Timestamp(round_timestamp(moment, digits)))
        }
        (Some(digits), scalar) => Scalar::Call(Function::TimestampDigits(digits), vec![scalar]),
    }
}

fn fold_plain_cast(scalar: Scalar, to: ColumnType) -> Result<Scalar> {
    Ok(match scalar {
        Scalar::Literal(datum) => Scalar::Literal(cast(datum, to)?),
        other => Scalar::Cast { inner: Box::new(other), to, cut: false },
    })
}

/// Where a numeric type stands in the order of implicit casts.
fn rank(data_type: ColumnType) -> Option<u8> {
    Some(match data_type {
        ColumnType::SmallInt => 0,
        ColumnType::Int => 1,
        ColumnType::BigInt => 2,
        ColumnType::Decimal { .. } => 3,
        ColumnType::Real => 4,
        ColumnType::Double => 5,
        _ => return None,
    })
}

/// The type in which an operator takes two numbers.
fn common_number(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType as T;
    let wider = rank(a)? >= rank(b)?;
    Some(match (a, b) {
        (T::Decimal { scale: s, .. }, T::Decimal { scale: t, .. }) => T::Decimal { precision: 38, scale: s.max(t) },
        // PostgreSQL goes to double precision when a real meets an exact number.
        (T::Real, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. })
        | (T::SmallInt | T::Int | T::BigInt | T::Decimal { .. }, T::Real) => T::Double,
        _ if wider => a,
        _ => b,
    })
}

/// Whether NULLIF is of the type of its first argument, which becomes the second one's only to be compared: PostgreSQL has an `=` of integers of several
/// sizes, of a REAL beside a DOUBLE PRECISION, which exact numbers become, and of a DATE beside a TIMESTAMP.
pub(crate) fn is_kept_by_null_if(first: ColumnType, second: ColumnType) -> bool {
    use ColumnType as T;
    matches!(
        (first, second),
        (T::SmallInt, T::Int | T::BigInt)
            | (T::Int, T::BigInt)
            | (T::Real, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. } | T::Double)
            | (T::Date, T::Timestamp)
    )
}

/// The type of NULLIF: the one in which its operator `=` takes the first argument.
fn type_of_null_if(types: (Option<ColumnType>, Option<ColumnType>)) -> ColumnType {
    use ColumnType as T;
    match types {
        // VARCHAR is compared as text, and what has no type yet has no length either.
        (Some(T::Varchar(_)), _) | (None, None | Some(T::Char(_) | T::Varchar(_))) => T::Text,
        (None, Some(only)) | (Some(only), None) => only,
        (Some(a @ (T::SmallInt | T::Int | T::BigInt)), Some(T::SmallInt | T::Int | T::BigInt))
        | (Some(a @ T::Decimal { .. }), Some(T::Decimal { .. })) => a,
        (Some(a), Some(b)) if is_kept_by_null_if(a, b) => a,
        (Some(T::SmallInt | T::Int | T::BigInt), Some(T::Decimal { .. })) => T::Decimal { precision: 38, scale: 0 },
        (Some(a), Some(b)) => common_number(a, b).unwrap_or(a),
    }
}

/// The type of the values of CASE, COALESCE and GREATEST: the one that the others can become. Beside exact numbers a REAL
/// stays what it is there.
fn common_type(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType as T;
    Some(match (a, b) {
        (a, b) if a == b => a,
        (T::Decimal { scale: s, .. }, T::Decimal { scale: t, .. }) => T::Decimal { precision: 38, scale: s.max(t) },
        (a, b) if a.is_text() && b.is_text() => T::Text,
        (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => T::Timestamp,
        (a, b) if rank(a)? >= rank(b)? => a,
        (_, b) => b,
    })
}

/// Whether the datums of two types are of one kind, so that no cast is needed.
pub(crate) fn same_kind(a: ColumnType, b: ColumnType) -> bool {
    a == b || (a.is_text() && b.is_text()) || matches!((a, b), (ColumnType::Decimal { .. }, ColumnType::Decimal { .. }))
}

/// PostgreSQL's assignment casts.
pub(crate) fn assignable(from: ColumnType, to: ColumnType) -> bool {
    same_kind(from, to)
        || to.is_text()
        || (rank(from).is_some() && rank(to).is_some())
        || matches!((from, to), (ColumnType::Date, ColumnType::Timestamp) | (ColumnType::Timestamp, ColumnType::Date))
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
