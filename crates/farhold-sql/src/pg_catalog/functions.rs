//! Functions that clients call on the catalog, in addition to those of `datafusion-pg-catalog`.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

use super::{IndexKind, IndexOf, OWNER_OID, Relation, Relations, constraint_oid};

/// Registers the functions; those of the same name are replaced.
pub(super) fn register(context: &SessionContext, relations: &Arc<dyn Relations>) {
    let defining = |name, spell: fn(&Definitions, i32, i64) -> Option<String>| {
        Function::new(name, Body::Spelled { relations: Arc::clone(relations), spell })
    };
    let functions = [
        defining("pg_get_indexdef", |definitions, oid, column| match column {
            0 => definitions.indexes.get(&oid).map(|(whole, _)| whole.clone()),
            column => {
                let columns = &definitions.indexes.get(&oid)?.1;
                columns.get(usize::try_from(column - 1).ok()?).cloned()
            }
        }),
        defining("pg_get_constraintdef", |definitions, oid, pretty| {
            let (plain, short) = definitions.constraints.get(&oid)?;
            Some(if pretty == 0 { plain.clone() } else { short.clone() })
        }),
        defining("pg_get_userbyid", |definitions, oid, _| {
            Some(if oid == OWNER_OID { definitions.owner.clone() } else { format!("unknown (OID={oid})") })
        }),
        defining("farhold_default", |definitions, table, column| definitions.defaults.get(&(table, column)).cloned()),
        // Expressions are stored as text.
        Function::new("pg_get_expr", Body::First),
    ];
    for function in functions {
        context.register_udf(ScalarUDF::new_from_impl(function));
    }
    for &(name, kind) in CONSTANTS {
        context.register_udf(ScalarUDF::new_from_impl(Function::new(name, Body::Constant(kind))));
    }
}

/// Functions with a constant result here. The sizes of single tables are not known.
const CONSTANTS: &[(&str, Constant)] = &[
    ("col_description", Constant::NullText),
    ("has_column_privilege", Constant::True),
    ("has_function_privilege", Constant::True),
    ("has_sequence_privilege", Constant::True),
    ("has_tablespace_privilege", Constant::True),
    ("has_type_privilege", Constant::True),
    ("obj_description", Constant::NullText),
    ("getdatabaseencoding", Constant::Encoding),
    ("pg_advisory_unlock_all", Constant::NullText),
    ("pg_char_to_encoding", Constant::EncodingNumber),
    ("pg_collation_is_visible", Constant::True),
    ("pg_conversion_is_visible", Constant::True),
    ("pg_database_size", Constant::NullLong),
    ("pg_function_is_visible", Constant::True),
    ("pg_get_function_arguments", Constant::NullText),
    ("pg_get_function_identity_arguments", Constant::NullText),
    ("pg_get_function_result", Constant::NullText),
    ("pg_get_function_sqlbody", Constant::NullText),
    ("pg_get_functiondef", Constant::NullText),
    ("pg_get_partkeydef", Constant::NullText),
    ("pg_get_ruledef", Constant::NullText),
    ("pg_get_serial_sequence", Constant::NullText),
    ("pg_get_statisticsobjdef", Constant::NullText),
    ("pg_get_triggerdef", Constant::NullText),
    ("pg_get_viewdef", Constant::NullText),
    ("pg_indexes_size", Constant::NullLong),
    ("pg_is_in_recovery", Constant::False),
    ("pg_is_other_temp_schema", Constant::False),
    ("pg_my_temp_schema", Constant::Zero),
    ("pg_opclass_is_visible", Constant::True),
    ("pg_operator_is_visible", Constant::True),
    ("pg_opfamily_is_visible", Constant::True),
    ("pg_relation_size", Constant::NullLong),
    ("pg_size_pretty", Constant::NullText),
    ("pg_statistics_obj_is_visible", Constant::True),
    ("pg_table_size", Constant::NullLong),
    ("pg_tablespace_location", Constant::NullText),
    ("pg_total_relation_size", Constant::NullLong),
    ("pg_ts_config_is_visible", Constant::True),
    ("pg_type_is_visible", Constant::True),
    ("row_security_active", Constant::False),
    ("shobj_description", Constant::NullText),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Constant {
    True,
    False,
    Zero,
    NullText,
    NullLong,
    Encoding,
    EncodingNumber,
}

/// The definitions of all objects as text, by OID.
struct Definitions {
    /// The whole definition, and each column.
    indexes: HashMap<i32, (String, Vec<String>)>,
    /// As they are, and with fewer parentheses.
    constraints: HashMap<i32, (String, String)>,
    /// By table and column number.
    defaults: HashMap<(i32, i64), String>,
    owner: String,
}

impl Definitions {
    fn of(relations: &dyn Relations) -> Self {
        let (mut indexes, mut constraints, mut defaults) = (HashMap::new(), HashMap::new(), HashMap::new());
        for table in relations.relations() {
            for (column, number) in table.columns.iter().zip(1..) {
                defaults.extend(column.default.clone().map(|default| ((table.oid(), number), default)));
            }
            for (oid, index) in table.numbered_indexes() {
                let columns = index.columns.iter().map(|&column| super::quoted(&table.columns[column].name)).collect();
                indexes.insert(oid, (index_definition(&table, index), columns));
                if index.kind == IndexKind::PrimaryKey {
                    let definition = format!("PRIMARY KEY ({})", table.column_list(index));
                    constraints.insert(constraint_oid(oid), (definition.clone(), definition));
                }
            }
            for (oid, check) in table.numbered_checks() {
                let (condition, end) = (&check.condition, if check.validated { "" } else { " NOT VALID" });
                let definitions = (format!("CHECK (({condition})){end}"), format!("CHECK ({condition}){end}"));
                constraints.insert(oid, definitions);
            }
        }
        Self { indexes, constraints, defaults, owner: relations.owner() }
    }
}

/// The statement that would create an index.
pub(super) fn index_definition(table: &Relation, index: &IndexOf) -> String {
    let unique = if index.kind == IndexKind::Plain { "" } else { "UNIQUE " };
    let (name, relation) = (super::quoted(&index.name), super::quoted(&table.name));
    format!("CREATE {unique}INDEX {name} ON public.{relation} USING btree ({})", table.column_list(index))
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    signature: Signature,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Constant(Constant),
    /// The first argument, as text.
    First,
    /// The text for an OID, and for the second argument if that is a number or a boolean.
    Spelled {
        relations: Arc<dyn Relations>,
        spell: fn(&Definitions, i32, i64) -> Option<String>,
    },
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Function {}
impl std::hash::Hash for Function {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Function {
    fn new(name: &'static str, body: Body) -> Self {
        let any = (0..=4).map(|count| match count {
            0 => datafusion::logical_expr::TypeSignature::Nullary,
            count => datafusion::logical_expr::TypeSignature::Any(count),
        });
        let signature = Signature::one_of(any.collect(), Volatility::Stable);
        Self { name, signature, body }
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.body {
            Body::Constant(Constant::True | Constant::False) => DataType::Boolean,
            Body::Constant(Constant::Zero | Constant::EncodingNumber) => DataType::Int32,
            Body::Constant(Constant::NullLong) => DataType::Int64,
            Body::Constant(Constant::NullText | Constant::Encoding) | Body::First | Body::Spelled { .. } => {
                DataType::Utf8
            }
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &self.body {
            Body::Constant(constant) => Ok(ColumnarValue::Scalar(match constant {
                Constant::True => ScalarValue::Boolean(Some(true)),
                Constant::False => ScalarValue::Boolean(Some(false)),
                Constant::Zero => ScalarValue::Int32(Some(0)),
                Constant::NullText => ScalarValue::Utf8(None),
                Constant::NullLong => ScalarValue::Int64(None),
                Constant::Encoding => ScalarValue::Utf8(Some("UTF8".to_owned())),
                Constant::EncodingNumber => ScalarValue::Int32(Some(super::UTF8)),
            })),
            Body::First => {
                let Some(first) = arguments.args.first() else {
                    return datafusion::common::plan_err!("{} requires an argument", self.name());
                };
                first.cast_to(&DataType::Utf8, None)
            }
            Body::Spelled { relations, spell } => {
                let definitions = Definitions::of(relations.as_ref());
                let rows = arguments.number_rows;
                let numbers = |at: usize| -> Result<Option<ArrayRef>> {
                    let Some(argument) = arguments.args.get(at) else { return Ok(None) };
                    let data_type = argument.data_type();
                    if at > 0 && !data_type.is_integer() && data_type != DataType::Boolean {
                        return Ok(None);
                    }
                    Ok(Some(cast(&argument.clone().into_array(rows)?, &DataType::Int64)?))
                };
                let (oids, columns) = (numbers(0)?, numbers(1)?);
                let value = |array: &Option<ArrayRef>, row: usize| {
                    let array = array.as_ref()?.as_primitive::<Int64Type>();
                    array.is_valid(row).then(|| array.value(row))
                };
                let spelled = (0..rows).map(|row| {
                    let oid = i32::try_from(value(&oids, row)?).ok()?;
                    spell(&definitions, oid, value(&columns, row).unwrap_or(0))
                });
                Ok(ColumnarValue::Array(Arc::new(spelled.collect::<StringArray>())))
            }
        }
    }
}
