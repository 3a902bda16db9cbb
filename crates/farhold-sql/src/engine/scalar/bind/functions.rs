//! Calls of functions.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, FunctionArguments};

use super::super::{Comparison, Function, Scalar};
use super::types::{fold_plain_cast, is_kept_by_null_if, rank, type_of_null_if};
use super::{BindError, Binder, Bound, Result, fold, known};
use crate::engine::sequence::bind as bind_sequence;
use crate::engine::{ColumnType, Datum};

impl Binder<'_> {
    pub(super) fn function(&mut self, function: &ast::Function) -> Result<Bound> {
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
            ("now" | "current_timestamp" | "transaction_timestamp", 0) => {
                Ok(known(time(Function::TransactionTime), ColumnType::Timestamptz))
            }
            ("statement_timestamp", 0) => Ok(known(time(Function::StatementTime), ColumnType::Timestamptz)),
            ("clock_timestamp", 0) => Ok(known(time(Function::ClockTime), ColumnType::Timestamptz)),
            ("localtimestamp" | "current_date", 0) => {
                let to = if name == "current_date" { ColumnType::Date } else { ColumnType::Timestamp };
                let inner = Box::new(time(Function::TransactionTime));
                Ok(known(Scalar::Cast { inner, to, cut: false }, to))
            }
            ("timezone", 2) => {
                let moment = arguments.pop().ok_or(BindError::Complex)?;
                let zone = arguments.pop().ok_or(BindError::Complex)?;
                self.at_zone(zone, moment)
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
                let uncast = first.scalar.clone();
                let (a, b) = self.unify(first, second)?;
                let data_type = type_of_null_if(types);
                if matches!(types, (Some(ColumnType::Timestamp), Some(ColumnType::Timestamptz))) {
                    // A local time that the clocks skip would come back as another.
                    let null = Scalar::Literal(Datum::Null);
                    let equal = Scalar::Compare(Comparison::Equal, Box::new(a), Box::new(b));
                    return Ok(known(Scalar::Case(vec![(equal, null)], Box::new(uncast)), data_type));
                }
                let scalar = Scalar::NullIf(Box::new(a), Box::new(b));
                // A value that was cast only for the comparison is cast back.
                let becomes_again = matches!(types, (Some(a), Some(b)) if is_kept_by_null_if(a, b));
                Ok(known(
                    if becomes_again { fold_plain_cast(scalar, data_type, self.zone)? } else { scalar },
                    data_type,
                ))
            }
            _ => Err(BindError::Complex),
        }
    }

    /// `timezone(zone, moment)`: the local time of an instant, or the instant of a local time.
    pub(super) fn at_zone(&mut self, zone: Bound, moment: Bound) -> Result<Bound> {
        use ColumnType as T;
        if zone.data_type.is_some_and(|of| !of.is_text()) {
            return Err(BindError::Complex);
        }
        let zone = self.text(zone)?;
        let (moment, data_type) = match moment.data_type {
            Some(T::Timestamp) => (moment.scalar, T::Timestamptz),
            Some(T::Timestamptz) => (moment.scalar, T::Timestamp),
            Some(T::Date) => (fold_plain_cast(moment.scalar, T::Timestamptz, self.zone)?, T::Timestamp),
            None => (self.resolve(moment.scalar, T::Timestamptz)?, T::Timestamp),
            Some(_) => return Err(BindError::Complex),
        };
        Ok(known(Scalar::Call(Function::AtZone, vec![zone, moment]), data_type))
    }
}

fn time(function: Function) -> Scalar {
    Scalar::Call(function, Vec::new())
}

/// The name of a function that may be built in: unqualified, or qualified by `pg_catalog`.
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

/// The argument without a cast to regclass: `'name'::regclass` becomes the name.
pub(crate) fn without_regclass(argument: &Expr) -> &Expr {
    match argument {
        Expr::Cast { expr, data_type: ast::DataType::Regclass, .. } => expr,
        other => other,
    }
}

/// Functions that are called without parentheses.
pub(super) fn is_session_word(word: &str) -> bool {
    matches!(
        word.to_ascii_lowercase().as_str(),
        "current_user" | "session_user" | "user" | "current_role" | "current_catalog" | "current_schema"
    )
}
