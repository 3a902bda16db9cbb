//! Sides with numbered rows, a join over them by hash map, and the run of a real join for comparison.
#![expect(clippy::from_iter_instead_of_collect, reason = "the array type is the point and comes first")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, SchemaRef};
use farhold_join::{Join, JoinError, JoinKind, JoinOptions, JoinReport, JoinSpec, MemoryPool, Residual, Run};

/// Maps a number to one that looks random.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fixed, so that a failure can be repeated.
pub const SEED: u64 = 1;

/// The usual options, with [`SEED`].
pub fn seeded(pool: Arc<MemoryPool>) -> JoinOptions {
    JoinOptions { run: Run { seed: SEED, ..Run::default() }, ..JoinOptions::new(pool) }
}

/// The mapping of a logical key (a number or null) to columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    Int64,
    TwoInt32,
    Text,
    TextView,
    TextAndDate,
    Decimal,
}

impl KeyType {
    pub const ALL: [Self; 6] =
        [Self::Int64, Self::TwoInt32, Self::Text, Self::TextView, Self::TextAndDate, Self::Decimal];

    fn columns(self, keys: &[Option<u64>]) -> Vec<ArrayRef> {
        let numbers = || keys.iter().map(|key| key.map(|key| key as i64));
        let low = || keys.iter().map(|key| key.map(|key| key as i32 % 7));
        let high = || keys.iter().map(|key| key.map(|key| (key / 7) as i32));
        let texts = || keys.iter().map(|key| key.map(|key| format!("key number {key} of the join")));
        match self {
            Self::Int64 => vec![Arc::new(Int64Array::from_iter(numbers()))],
            Self::TwoInt32 => vec![
                Arc::new(Int32Array::from_iter(keys.iter().map(|key| key.map(|key| (key % 7) as i32)))),
                Arc::new(Int32Array::from_iter(high())),
            ],
            Self::Text => vec![Arc::new(StringArray::from_iter(texts()))],
            Self::TextView => vec![Arc::new(StringViewArray::from_iter(texts()))],
            Self::TextAndDate => vec![
                Arc::new(StringArray::from_iter(low().map(|low| low.map(|low| low.to_string())))),
                Arc::new(Date32Array::from_iter(numbers().map(|key| key.map(|key| key as i32)))),
            ],
            Self::Decimal => vec![Arc::new(
                Decimal128Array::from_iter(numbers().map(|key| key.map(|key| i128::from(key) << 40)))
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            )],
        }
    }
}

/// A side: its keys by row number, and the rows as batches. The columns are keys, `id` (the row number), and `text`
/// (made of it).
pub struct Side {
    pub keys: Vec<Option<u64>>,
    pub batches: Vec<RecordBatch>,
    pub schema: SchemaRef,
    pub key_columns: usize,
}

impl Side {
    pub fn new(keys: Vec<Option<u64>>, kind: KeyType, text_bytes: usize, batch_rows: usize) -> Self {
        let batch = |from: usize, keys: &[Option<u64>]| {
            let ids = from..from + keys.len();
            let mut columns: Vec<(String, ArrayRef, bool)> = kind
                .columns(keys)
                .into_iter()
                .enumerate()
                .map(|(n, column)| (format!("key{n}"), column, true))
                .collect();
            columns.push(("id".into(), Arc::new(Int64Array::from_iter_values(ids.clone().map(|id| id as i64))), false));
            columns.push((
                "text".into(),
                Arc::new(StringArray::from_iter_values(ids.map(|id| text(id as i64, text_bytes)))),
                false,
            ));
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let schema = batch(0, &[]).schema();
        let key_columns = schema.fields().len() - 2;
        let batches =
            keys.chunks(batch_rows).enumerate().map(|(number, keys)| batch(number * batch_rows, keys)).collect();
        Self { keys, batches, schema, key_columns }
    }
}

fn text(id: i64, bytes: usize) -> String {
    format!("{id:0bytes$}")
}

/// A row of the output: the row numbers of both sides, and the mark.
pub type Row = (Option<i64>, Option<i64>, Option<bool>);

/// The condition of the tests: odd probe rows match only within one thousand of the build rows, so that blocks differ.
fn holds(build: usize, probe: usize) -> bool {
    !(build + probe).is_multiple_of(3) && (probe.is_multiple_of(2) || build / 1000 == probe % 8)
}

/// [`holds`], over the columns with the row numbers.
pub fn residual(build: &Side, probe: &Side) -> Residual {
    Residual {
        build_columns: vec![build.key_columns],
        probe_columns: vec![probe.key_columns],
        evaluate: Arc::new(|pairs| {
            let (build, probe) =
                (pairs.column(0).as_primitive::<Int64Type>(), pairs.column(1).as_primitive::<Int64Type>());
            // Null in place of false: it must drop a pair too.
            Ok(BooleanArray::from_iter(
                build.values().iter().zip(probe.values()).map(|(b, p)| holds(*b as usize, *p as usize).then_some(true)),
            ))
        }),
    }
}

pub fn spec(build: &Side, probe: &Side, kind: JoinKind) -> JoinSpec {
    let on = (0..build.key_columns).map(|column| (column, column)).collect();
    JoinSpec::new(build.schema.clone(), probe.schema.clone(), on, kind)
}

/// The expected rows of the join, sorted.
pub fn expected(build: &Side, probe: &Side, spec: &JoinSpec) -> Vec<Row> {
    let mut by_key: HashMap<Option<u64>, Vec<usize>> = HashMap::new();
    for (row, key) in build.keys.iter().enumerate() {
        if key.is_some() || spec.null_equals_null {
            by_key.entry(*key).or_default().push(row);
        }
    }
    let mut pairs = Vec::new();
    let (mut build_matched, mut probe_matched) = (vec![false; build.keys.len()], vec![false; probe.keys.len()]);
    for (p, key) in probe.keys.iter().enumerate() {
        for &b in by_key.get(key).into_iter().flatten() {
            if spec.residual.is_none() || holds(b, p) {
                pairs.push((Some(b as i64), Some(p as i64), None));
                build_matched[b] = true;
                probe_matched[p] = true;
            }
        }
    }
    let one_side = |matched: &[bool], is_build: bool, keep: &dyn Fn(bool) -> bool, mark: bool| -> Vec<Row> {
        let rows = matched.iter().enumerate().filter(|row| keep(*row.1));
        rows.map(|(row, &is_matched)| {
            let (id, mark) = (Some(row as i64), mark.then_some(is_matched));
            if is_build { (id, None, mark) } else { (None, id, mark) }
        })
        .collect()
    };
    let mut rows = match spec.kind {
        JoinKind::Inner => pairs,
        JoinKind::Left => [pairs, one_side(&build_matched, true, &|m| !m, false)].concat(),
        JoinKind::Right => [pairs, one_side(&probe_matched, false, &|m| !m, false)].concat(),
        JoinKind::Full => {
            [pairs, one_side(&build_matched, true, &|m| !m, false), one_side(&probe_matched, false, &|m| !m, false)]
                .concat()
        }
        JoinKind::LeftSemi => one_side(&build_matched, true, &|m| m, false),
        JoinKind::RightSemi => one_side(&probe_matched, false, &|m| m, false),
        JoinKind::LeftAnti => one_side(&build_matched, true, &|m| !m, false),
        JoinKind::RightAnti => one_side(&probe_matched, false, &|m| !m, false),
        JoinKind::LeftMark => one_side(&build_matched, true, &|_| true, true),
        JoinKind::RightMark => one_side(&probe_matched, false, &|_| true, true),
    };
    rows.sort_unstable();
    rows
}

/// Runs a join to its end, handing every output batch to `each`.
pub fn run(
    build: &Side,
    probe: &Side,
    spec: JoinSpec,
    options: JoinOptions,
    mut each: impl FnMut(RecordBatch) + Send,
) -> Result<JoinReport, JoinError> {
    let shares = options.shares;
    let join = Join::new(spec, options)?;
    if shares > 1 { drive_shares(join, build, probe, &mut each) } else { drive(join, build, probe, &mut each) }
}

/// Feeds a begun join to its end. Its shares run on threads, each with every `shares`-th probe batch.
fn drive_shares(
    mut join: Join,
    build: &Side,
    probe: &Side,
    each: &mut (dyn FnMut(RecordBatch) + Send),
) -> Result<JoinReport, JoinError> {
    build.batches.iter().try_for_each(|batch| join.push_build(batch))?;
    join.finish_build()?;
    let joins = join.split()?;
    let (count, each) = (joins.len(), Mutex::new(each));
    let drive = |mut join: Join, number: usize| {
        for batch in probe.batches.iter().skip(number).step_by(count) {
            join.push_probe(batch)?;
            while let Some(batch) = join.next_output()? {
                each.lock().unwrap()(batch);
            }
        }
        join.finish_probe()?;
        while let Some(batch) = join.next_output()? {
            each.lock().unwrap()(batch);
        }
        assert!(join.is_done());
        Ok(join.report())
    };
    let reports: Result<Vec<JoinReport>, JoinError> = std::thread::scope(|scope| {
        let drive = &drive;
        let shares: Vec<_> =
            joins.into_iter().enumerate().map(|(number, join)| scope.spawn(move || drive(join, number))).collect();
        shares.into_iter().map(|share| share.join().unwrap()).collect()
    });
    let all = reports?.into_iter().reduce(|mut all, more| {
        all.tables += more.tables;
        all.spilled_partitions += more.spilled_partitions;
        all.spilled_bytes += more.spilled_bytes;
        all.rounds = all.rounds.max(more.rounds);
        all.block_passes += more.block_passes;
        all
    });
    Ok(all.unwrap())
}

/// Feeds a begun join to its end.
pub fn drive(
    mut join: Join,
    build: &Side,
    probe: &Side,
    each: &mut dyn FnMut(RecordBatch),
) -> Result<JoinReport, JoinError> {
    build.batches.iter().try_for_each(|batch| join.push_build(batch))?;
    join.finish_build()?;
    for batch in &probe.batches {
        join.push_probe(batch)?;
        while let Some(batch) = join.next_output()? {
            each(batch);
        }
    }
    join.finish_probe()?;
    while let Some(batch) = join.next_output()? {
        each(batch);
    }
    assert!(join.is_done());
    Ok(join.report())
}

/// The rows of a real join, sorted. Every column of every row has been compared with its side.
pub fn actual(
    build: &Side,
    probe: &Side,
    spec: &JoinSpec,
    options: JoinOptions,
) -> Result<(Vec<Row>, JoinReport), JoinError> {
    let limit = options.batch_rows_max;
    let mut batches = Vec::new();
    let report = run(build, probe, spec.clone(), options, |batch| {
        assert!((1..=limit).contains(&batch.num_rows()));
        batches.push(batch);
    })?;
    let rows: Vec<Row> = batches.iter().flat_map(|batch| rows_of(build, probe, spec, batch)).collect();
    let mut sorted = rows;
    sorted.sort_unstable();
    Ok((sorted, report))
}

/// The rows of an output batch.
pub fn rows_of(build: &Side, probe: &Side, spec: &JoinSpec, batch: &RecordBatch) -> Vec<Row> {
    let schema = spec.output_schema();
    assert_eq!(batch.schema(), schema);
    let pairs = matches!(spec.kind, JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full);
    let is_left = matches!(spec.kind, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark);
    let width = build.schema.fields().len();
    let build_ids = (pairs || is_left).then(|| ids_of(build, batch, 0));
    let probe_ids = (pairs || !is_left).then(|| ids_of(probe, batch, if pairs { width } else { 0 }));
    let marks = schema
        .fields()
        .iter()
        .any(|field| field.name() == "mark")
        .then(|| batch.columns().last().unwrap().as_boolean().clone());
    let at = |ids: &Option<Vec<Option<i64>>>, row: usize| ids.as_ref().and_then(|ids| ids[row]);
    (0..batch.num_rows())
        .map(|row| (at(&build_ids, row), at(&probe_ids, row), marks.as_ref().map(|marks| marks.value(row))))
        .collect()
}

/// The row numbers in a batch whose columns of this side start at `from`. All other columns must match them.
fn ids_of(side: &Side, batch: &RecordBatch, from: usize) -> Vec<Option<i64>> {
    let ids = batch.column(from + side.key_columns).as_primitive::<Int64Type>();
    let whole = concat_batches(&side.schema, &side.batches).unwrap();
    for column in 0..side.schema.fields().len() {
        let source = arrow::compute::take(whole.column(column), &ids.clone(), None).unwrap();
        assert_eq!(source.as_ref(), batch.column(from + column).as_ref(), "column {column}");
    }
    ids.iter().collect()
}
