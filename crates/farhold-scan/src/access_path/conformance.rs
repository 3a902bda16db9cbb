//! One suite over [`super::ALL`], over each provider: every path gives the rows that a scan row by row gives.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use farhold_fabric::mover::{CopyEngine, Mover, Processor};
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Endpoint, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId, RegionMemory};
use farhold_store::column::{BLOCK_ROWS, CHUNK_ROWS_MAX, Chunk, double_of, real_of};
use farhold_store::row::{ColumnType, Datum, Schema};
use farhold_testkit::{TempDir, memory_directory};

use super::pushdown::{Messages, RegionHome, answer};
use super::*;
use crate::columns::conformance::{Key, Random, TYPES, Table, table_of};
use crate::predicate::{Comparison, Condition, Constant, compare_floats};
use crate::rows::RowFilter;

const READER: NodeId = NodeId(1);
const HOME: NodeId = NodeId(2);
const REGION: RegionId = RegionId(7);
/// Longer than any thread waits for a processor.
const LONG_NS: u64 = 60_000_000_000;

/// A cluster of two nodes by one provider.
struct Bed {
    executor: Executor,
    /// Removed with it.
    _directory: Option<TempDir>,
    nodes: [Fabric; 2],
}

impl Bed {
    fn shm() -> Self {
        let directory = memory_directory();
        let nodes = [READER, HOME].map(|node| Fabric::join_shm(&directory, node).unwrap());
        Self { executor: Executor::real(1), _directory: Some(directory), nodes }
    }

    #[cfg(feature = "libfabric")]
    fn tcp() -> Self {
        use farhold_fabric::provider::libfabric::{Config, Secret};
        let directory = memory_directory();
        let mut config = Config::new("tcp;ofi_rxm", Secret::new(b"the tests' own secret").unwrap());
        (config.connect_timeout_ns, config.request_timeout_ns) = (LONG_NS, LONG_NS);
        let nodes = [READER, HOME].map(|node| Fabric::join_libfabric(&directory, node, config.clone()).unwrap());
        Self { executor: Executor::real(1), _directory: Some(directory), nodes }
    }

    fn sim() -> Self {
        let executor = Executor::virtual_time(1);
        let sim = Sim::new(&executor.handle(), Rdma, Faults::default());
        let nodes = [READER, HOME].map(|node| sim.join(node).unwrap());
        Self { executor, _directory: None, nodes }
    }

    /// Whether regions of the home node are mapped at the reader.
    fn maps(&self) -> bool {
        self.nodes[0].provider() == "shm"
    }
}

type Make = (&'static str, fn() -> Bed);

/// A bed of each provider.
const BEDS: &[Make] = &[
    ("shm", Bed::shm),
    ("sim", Bed::sim),
    #[cfg(feature = "libfabric")]
    ("tcp", Bed::tcp),
];

/// Runs a test over each provider.
fn on_each(mut test: impl FnMut(&Bed)) {
    for (name, bed) in BEDS {
        println!("provider {name}");
        test(&bed());
    }
}

/// The chunks that the tests wrote, and which stay until the test ends.
struct Kept(HashSet<FarChunk>);

// SAFETY: the tests write all chunks before the first scan, and damage none while a scan reads.
unsafe impl Pinned for Kept {
    fn covers(&self, chunk: FarChunk) -> bool {
        self.0.contains(&chunk)
    }
}

/// Tables of one schema, each a segment in the home node's region.
struct Far {
    tables: Vec<Table>,
    segments: Vec<FarSegment>,
    kept: Kept,
    memory: Arc<RegionMemory>,
}

impl Far {
    fn new(bed: &Bed, tables: Vec<Table>, random: &mut Random) -> Self {
        let bytes: usize = tables.iter().flat_map(|table| &table.chunks).map(|chunk| chunk.len() + 64).sum();
        let _ = bed.nodes[1].remove_region(REGION);
        let memory = bed.nodes[1].create_region(REGION, bytes as u64 + 4096).unwrap();
        let (mut end, mut segments) = (0, Vec::new());
        for table in &tables {
            let chunks = table.chunks.iter().map(|chunk| {
                // Some adjoin, and others nearly.
                end += [0, 0, 1, 2, random.next() % 17][random.below(5)];
                let far = FarChunk { at: memory.far_ptr(end), bytes: chunk.len() as u32 };
                memory.reserve(end, chunk.len() as u64).unwrap();
                memory.copy_in(end, chunk).unwrap();
                end += chunk.len() as u64;
                far
            });
            segments.push(FarSegment { rows: table.rows.len(), chunks: chunks.collect(), ended: Vec::new() });
        }
        let kept = Kept(segments.iter().flat_map(|segment| &segment.chunks).copied().collect());
        Self { tables, segments, kept, memory }
    }

    fn schema(&self) -> &Schema {
        &self.tables[0].schema
    }

    /// Other rows have ended.
    fn end_rows(&mut self, random: &mut Random) {
        self.segments.iter_mut().for_each(|segment| segment.ended = random.ended(segment.rows));
    }

    fn scan<'a>(&'a self, predicate: &'a Predicate, wanted: Wanted<'a>) -> Scan<'a> {
        Scan { schema: self.schema(), segments: &self.segments, predicate, wanted }
    }

    fn home(&self) -> RegionHome<'_> {
        RegionHome { schema: self.schema(), memory: &self.memory, pinned: &self.kept }
    }
}

/// Polls both until the first is over.
async fn beside<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut is_over = false;
    poll_fn(|cx| {
        let polled = first.as_mut().poll(cx);
        if !is_over && polled.is_pending() {
            is_over = second.as_mut().poll(cx).is_ready();
        }
        polled
    })
    .await
}

/// What the tests read with.
struct Ends {
    endpoint: Endpoint,
    agent: Endpoint,
    mover: Mover,
}

impl Ends {
    fn of(bed: &Bed) -> Self {
        let handle = bed.executor.handle();
        let [endpoint, agent] = [0, 1].map(|node| bed.nodes[node].endpoint(&handle).unwrap());
        Self { endpoint, agent, mover: Mover::start(1, Processor).unwrap() }
    }

    /// Gives a reader with everything to `body`, while the home node's agent answers.
    fn run<T>(&self, bed: &Bed, far: &Far, settings: Settings, body: impl AsyncFnOnce(Reader<'_>) -> T) -> T {
        let line = Messages::new(&self.endpoint, self.agent.address(), LONG_NS);
        let (mover, line) = (Some(&self.mover), Some(&line as &dyn pushdown::Line));
        let reader = Reader { endpoint: &self.endpoint, pinned: &far.kept, mover, line, settings };
        let home = far.home();
        let agent = async {
            loop {
                let message = self.agent.recv().await;
                let _ = answer(&self.agent, &home, &message).await;
            }
        };
        bed.executor.run(beside(body(reader), agent))
    }
}

/// A value of a chunk, or of a row.
#[derive(Clone, Debug)]
enum Cell {
    Null,
    Integer(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Integer(one), Self::Integer(other)) => one == other,
            // The sign of zero counts. All NaNs are one: chunks do not keep their bits, and those of a sum are the processor's.
            (Self::Float(one), Self::Float(other)) => {
                one.is_nan() && other.is_nan() || one.to_bits() == other.to_bits()
            }
            (Self::Bytes(one), Self::Bytes(other)) => one == other,
            _ => false,
        }
    }
}

fn of_datum(datum: &Datum) -> Cell {
    match datum {
        Datum::Null => Cell::Null,
        Datum::Boolean(value) => Cell::Integer(i128::from(*value)),
        Datum::SmallInt(value) => Cell::Integer(i128::from(*value)),
        Datum::Int(value) | Datum::Date(value) => Cell::Integer(i128::from(*value)),
        Datum::BigInt(value) | Datum::Timestamp(value) | Datum::Timestamptz(value) => Cell::Integer(i128::from(*value)),
        Datum::Decimal { unscaled, .. } => Cell::Integer(*unscaled),
        Datum::Real(value) => Cell::Float(f64::from(*value)),
        Datum::Double(value) => Cell::Float(*value),
        Datum::Text(text) => Cell::Bytes(text.clone().into_bytes()),
        Datum::Bytea(bytes) => Cell::Bytes(bytes.clone()),
    }
}

fn of_chunk(data_type: ColumnType, chunk: &Chunk<'_>, row: usize) -> Cell {
    if chunk.is_null(row) {
        return Cell::Null;
    }
    match data_type {
        ColumnType::Real => Cell::Float(f64::from(real_of(chunk.integer(row).unwrap()))),
        ColumnType::Double => Cell::Float(double_of(chunk.integer(row).unwrap())),
        ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text | ColumnType::Bytea => {
            Cell::Bytes(chunk.text(row).unwrap().to_vec())
        }
        _ => Cell::Integer(chunk.wide(row).unwrap()),
    }
}

fn of_value(value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Null,
        Value::Integer(integer) => Cell::Integer(*integer),
        Value::Float(float) => Cell::Float(*float),
        Value::Bytes(bytes) => Cell::Bytes(bytes.clone()),
        Value::Overflow => panic!("no sum of the tests is so long"),
    }
}

/// A segment's answer: how many rows pass, and the rows, each with its cells; or the aggregates.
type Answer = Vec<(usize, usize, Vec<(usize, Vec<Cell>)>, Vec<Cell>)>;

/// The answer row by row.
fn expected(far: &Far, predicate: &Predicate, wanted: Wanted<'_>) -> Answer {
    let filter = RowFilter::new(far.schema(), predicate);
    let mut scratch = Vec::new();
    let mut answer = Vec::new();
    for (segment, table) in far.tables.iter().enumerate() {
        let mut passes = |(key, value): &(Vec<u8>, Vec<u8>)| filter.matches(key, value, &mut scratch);
        let ended = &far.segments[segment].ended;
        let has_ended = |row: &usize| {
            ended.get(row / BLOCK_ROWS).is_some_and(|bits| bits[row % BLOCK_ROWS / 64] >> (row % 64) & 1 == 1)
        };
        let rows = (0..table.rows.len()).filter(|row| passes(&table.rows[*row]) && !has_ended(row));
        let rows: Vec<usize> = rows.collect();
        if rows.is_empty() {
            continue;
        }
        let cell = |row: usize, column: usize| match of_datum(&table.datums[row][column]) {
            // A key has one zero.
            Cell::Float(zero) if zero == 0.0 && far.schema().key().contains(&column) => Cell::Float(0.0),
            cell => cell,
        };
        answer.push(match wanted {
            Wanted::Columns(columns) => {
                let cells = |row: &usize| (*row, columns.iter().map(|column| cell(*row, *column)).collect());
                (segment, rows.len(), rows.iter().map(cells).collect(), Vec::new())
            }
            Wanted::Aggregates(aggregates) => {
                let of = |aggregate: &Aggregate| {
                    let column = aggregate.column().unwrap_or(0);
                    let cells = rows.iter().map(|row| cell(*row, column)).filter(|cell| *cell != Cell::Null);
                    expected_aggregate(*aggregate, rows.len(), &cells.collect::<Vec<_>>())
                };
                (segment, rows.len(), Vec::new(), aggregates.iter().map(of).collect())
            }
        });
    }
    answer
}

fn expected_aggregate(aggregate: Aggregate, rows: usize, cells: &[Cell]) -> Cell {
    let before = |one: &Cell, other: &Cell| match (one, other) {
        (Cell::Integer(one), Cell::Integer(other)) => one < other,
        (Cell::Float(one), Cell::Float(other)) => {
            compare_floats(*one, *other).then(other.is_sign_negative().cmp(&one.is_sign_negative())).is_lt()
                && !(one.is_nan() && other.is_nan())
        }
        (Cell::Bytes(one), Cell::Bytes(other)) => one < other,
        _ => panic!("cells of one column"),
    };
    let pick = |takes: &dyn Fn(&Cell, &Cell) -> bool| {
        let mut found: Option<&Cell> = None;
        for cell in cells {
            if found.is_none_or(|found| takes(cell, found)) {
                found = Some(cell);
            }
        }
        found.cloned().unwrap_or(Cell::Null)
    };
    match aggregate {
        Aggregate::Rows => Cell::Integer(rows as i128),
        Aggregate::Count(_) => Cell::Integer(cells.len() as i128),
        Aggregate::Min(_) => pick(&|cell, found| before(cell, found)),
        Aggregate::Max(_) => pick(&|cell, found| before(found, cell)),
        Aggregate::Sum(_) => match cells {
            [] => Cell::Null,
            [Cell::Integer(_), ..] => Cell::Integer(
                cells
                    .iter()
                    .map(|cell| if let Cell::Integer(value) = cell { *value } else { panic!("an integer") })
                    .sum(),
            ),
            _ => {
                let float = |cell: &Cell| if let Cell::Float(value) = cell { *value } else { panic!("a float") };
                Cell::Float(cells[1..].iter().fold(float(&cells[0]), |sum, cell| sum + float(cell)))
            }
        },
    }
}

/// The answer of a path.
async fn answered(path: &AccessPath, reader: &Reader<'_>, scan: &Scan<'_>) -> Result<(Answer, Counters), ScanError> {
    let mut answer = Answer::new();
    let mut take = |found: &Found<'_>| {
        assert_eq!(found.rows, scan.segments[found.segment].rows);
        let (blocks, told) = match scan.wanted {
            Wanted::Columns(_) => (found.rows.div_ceil(BLOCK_ROWS), found.passing),
            Wanted::Aggregates(_) => (0, 0),
        };
        assert_eq!((found.bits.len(), found.places().count()), (blocks, told));
        let (mut rows, mut aggregates) = (Vec::new(), Vec::new());
        for (row, place) in found.places() {
            rows.push((
                row,
                match found.values {
                    Values::OfAll(chunks) | Values::OfPassing(chunks) => {
                        let Wanted::Columns(columns) = scan.wanted else {
                            panic!("chunks where aggregates are wanted")
                        };
                        assert_eq!(chunks.len(), columns.len());
                        let cell = |(column, chunk): (&usize, &Chunk<'_>)| {
                            of_chunk(scan.schema.columns()[*column].data_type, chunk, place)
                        };
                        columns.iter().zip(chunks).map(cell).collect()
                    }
                    Values::Aggregates(_) => Vec::new(),
                },
            ));
        }
        if let Values::Aggregates(values) = found.values {
            aggregates = values.iter().map(of_value).collect();
        }
        answer.push((found.segment, found.passing, rows, aggregates));
        ControlFlow::Continue(())
    };
    let counters = path.scan(reader, scan, &mut take).await?;
    Ok((answer, counters))
}

/// Whether a path can be used on a bed for any scan.
fn is_usable(path: &AccessPath, bed: &Bed) -> bool {
    path.name != "direct" || bed.maps()
}

fn check(bed: &Bed, ends: &Ends, far: &Far, predicate: &Predicate, wanted: Wanted<'_>, settings: Settings) {
    let scan = far.scan(predicate, wanted);
    let expected = expected(far, predicate, wanted);
    ends.run(bed, far, settings, async |reader| {
        for path in ALL.iter().filter(|path| is_usable(path, bed)) {
            let (answer, counters) =
                answered(path, &reader, &scan).await.unwrap_or_else(|error| panic!("{}: {error}", path.name));
            // Millions of cells are not printed.
            assert!(answer == expected, "{} with {settings:?}, {wanted:?}: {predicate:?}", path.name);
            let passing: usize = answer.iter().map(|(_, passing, ..)| passing).sum();
            assert_eq!(counters.rows_passing, passing as u64, "{}", path.name);
            assert_eq!(
                counters.rows,
                far.segments.iter().map(|segment| segment.rows as u64).sum::<u64>(),
                "{}",
                path.name
            );
        }
    });
}

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn predicate(&mut self, types: &[ColumnType]) -> Predicate {
        let mut predicate = Predicate::everything();
        for _ in 0..self.below(4) {
            predicate.push(self.condition_on(types, 2), 0.5);
        }
        if self.below(20) == 0 {
            predicate.push(Condition::Never, 0.5);
        }
        predicate
    }

    /// Rows of a segment that have ended: none, a few, most, all, or those of the first blocks.
    pub(super) fn ended(&mut self, rows: usize) -> Vec<Bits> {
        let blocks = rows.div_ceil(BLOCK_ROWS);
        let (blocks, one_of) = match self.below(6) {
            0 | 1 => return Vec::new(),
            2 => (blocks, 97),
            3 => (blocks, 2),
            4 => (blocks, 1),
            _ => (self.below(blocks + 1), 3),
        };
        let mut ended = vec![Bits::default(); blocks];
        for row in (0..rows.min(blocks * BLOCK_ROWS)).filter(|_| self.below(one_of) == 0) {
            ended[row / BLOCK_ROWS][row % BLOCK_ROWS / 64] |= 1 << (row % 64);
        }
        ended
    }

    fn settings(&mut self) -> Settings {
        Settings {
            block_bytes: self.pick(&[0, 1, 700, 5000, 20_000, 64 << 10, 1 << 20, usize::MAX]),
            buffers: self.below(5),
            segments_per_request: self.below(4),
            requests: self.below(4),
            reply_ns_max: LONG_NS,
        }
    }

    fn columns(&mut self, schema: &Schema) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.below(schema.columns().len())).collect()
    }

    fn aggregates(&mut self, schema: &Schema) -> Vec<Aggregate> {
        let mut aggregate = || {
            let column = self.below(schema.columns().len());
            [
                Aggregate::Rows,
                Aggregate::Count(column),
                Aggregate::Sum(column),
                Aggregate::Min(column),
                Aggregate::Max(column),
            ][self.below(5)]
        };
        let aggregates: Vec<Aggregate> = (0..5).map(|_| aggregate()).collect();
        // A sum of many decimals of 38 digits has more bits than there are: see `sums_that_are_too_long`.
        let is_long = |aggregate: &Aggregate| matches!(aggregate, Aggregate::Sum(column) if matches!(schema.columns()[*column].data_type, ColumnType::Decimal { precision: 38, .. }));
        aggregates.into_iter().filter(|aggregate| aggregate.fits(schema) && !is_long(aggregate)).collect()
    }

    /// Tables of the same columns, some of them empty.
    fn tables(&mut self, rows: &[usize]) -> (Vec<ColumnType>, Vec<Table>) {
        let types: Vec<ColumnType> = (0..=self.below(7)).map(|_| self.pick(&TYPES)).collect();
        let key = self.pick(&[Key::Id, Key::All]);
        let count = 1 + self.below(6);
        let tables = (0..count).map(|_| {
            let rows = self.pick(rows);
            table_of(self, key, &types, rows)
        });
        let tables = tables.collect();
        (types, tables)
    }
}

/// The model chooses among these, and the rows.
#[test]
fn the_model_has_every_path() {
    let paths: Vec<PathKind> = ALL.iter().map(AccessPath::kind).collect();
    assert_eq!([&[PathKind::Rows], &paths[..]].concat(), PathKind::ALL);
}

#[test]
fn every_path_gives_the_rows_of_a_scan_row_by_row() {
    on_each(|bed| {
        for seed in 0..12 {
            println!("seed {seed}");
            let random = &mut Random(seed);
            let (types, tables) = random.tables(&[0, 1, 63, 1023, 1024, 1025, 2500, 4096]);
            let mut far = Far::new(bed, tables, random);
            let ends = Ends::of(bed);
            for _ in 0..12 {
                far.end_rows(random);
                let (predicate, settings) = (random.predicate(&types), random.settings());
                let columns = random.columns(far.schema());
                check(bed, &ends, &far, &predicate, Wanted::Columns(&columns), settings);
                let aggregates = random.aggregates(far.schema());
                check(bed, &ends, &far, &predicate, Wanted::Aggregates(&aggregates), settings);
            }
        }
    });
}

/// Of rows of which some have ended, the aggregates of the others: none, NULLs, NaNs and zeros of both signs among them.
#[test]
fn aggregates_of_rows_that_have_not_ended() {
    let special = [f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5];
    let doubles = [Datum::Null].into_iter().chain(special.map(Datum::Double));
    let rows: Vec<Vec<Datum>> = doubles.enumerate().map(|(id, double)| vec![Datum::Int(id as i32), double]).collect();
    let aggregates = [
        Aggregate::Rows,
        Aggregate::Count(1),
        Aggregate::Sum(1),
        Aggregate::Min(1),
        Aggregate::Max(1),
        Aggregate::Sum(0),
    ];
    on_each(|bed| {
        let random = &mut Random(19);
        let mut table = table_of(random, Key::Id, &[ColumnType::Double], 0);
        let mut builder = farhold_store::column::ChunkBuilder::new(&table.schema);
        for row in &rows {
            let (mut key, mut bytes) = (Vec::new(), Vec::new());
            table.schema.encode_key(row, &mut key).unwrap();
            table.schema.encode_value(row, &mut bytes).unwrap();
            builder.append(&key, &bytes);
            table.rows.push((key, bytes));
            table.datums.push(row.clone());
        }
        table.chunks = builder.finish();
        let mut far = Far::new(bed, vec![table], random);
        let ends = Ends::of(bed);
        // Each set of rows.
        for ended in 0..1_u64 << rows.len() {
            far.segments[0].ended = vec![[[ended].as_slice(), &[0; 15]].concat().try_into().unwrap()];
            let everything = Predicate::everything();
            check(bed, &ends, &far, &everything, Wanted::Aggregates(&aggregates), Settings::default());
        }
    });
}

/// Chunks with as many rows as there may be, of every type.
#[test]
fn full_segments() {
    let random = &mut Random(3);
    let table = table_of(random, Key::Id, &TYPES, CHUNK_ROWS_MAX);
    // Made once: it is most of the test's time.
    let mut tables = Some(vec![table, table_of(random, Key::Id, &TYPES, 5)]);
    on_each(|bed| {
        let mut far = Far::new(bed, tables.take().expect("the tables are given back"), random);
        let ends = Ends::of(bed);
        for block_bytes in [10_000, 100_000, 1 << 20] {
            far.end_rows(random);
            let settings = Settings { block_bytes, ..Settings::default() };
            let predicate = random.predicate(&TYPES);
            let columns: Vec<usize> = (0..far.schema().columns().len()).collect();
            check(bed, &ends, &far, &predicate, Wanted::Columns(&columns), settings);
            let aggregates = random.aggregates(far.schema());
            check(bed, &ends, &far, &predicate, Wanted::Aggregates(&aggregates), settings);
        }
        tables = Some(far.tables);
    });
}

/// Each type by itself, in parts of one block of rows and of several: every encoding is cut.
#[test]
fn every_encoding_in_parts() {
    on_each(|bed| {
        let mut met = HashSet::new();
        for (seed, data_type) in TYPES.into_iter().enumerate() {
            let random = &mut Random(200 + seed as u64);
            let tables: Vec<Table> = (0..10).map(|_| table_of(random, Key::Id, &[data_type], 3000)).collect();
            met.extend(tables.iter().map(|table| format!("{:?}", Chunk::open(&table.chunks[1]).unwrap().encoding())));
            let far = Far::new(bed, tables, random);
            let ends = Ends::of(bed);
            for block_bytes in [0, 2000, 20_000] {
                for _ in 0..3 {
                    let mut predicate = Predicate::everything();
                    predicate.push(random.condition_on(&[data_type], 1), 0.5);
                    let settings = Settings { block_bytes, ..Settings::default() };
                    check(bed, &ends, &far, &predicate, Wanted::Columns(&[]), settings);
                }
            }
        }
        assert_eq!(met.len(), 5, "{met:?}");
    });
}

/// A predicate that no row passes, and one that every row passes.
fn of_id(comparison: Comparison) -> Predicate {
    let mut predicate = Predicate::everything();
    predicate.push(Condition::Compare(0, comparison, Constant::Integer(-1)), 0.5);
    predicate
}

/// Columns that are no part of the predicate are read only for segments of which a row passes.
#[test]
fn late_columns_are_read_late() {
    on_each(|bed| {
        let random = &mut Random(5);
        let types = [ColumnType::BigInt, ColumnType::Text, ColumnType::Double];
        let tables = (0..4).map(|_| table_of(random, Key::Id, &types, 3000)).collect();
        let far = Far::new(bed, tables, random);
        let ends = Ends::of(bed);
        let bytes = |columns: &[usize]| -> u64 {
            let of = |segment: &FarSegment| {
                columns.iter().map(|column| u64::from(segment.chunks[*column].bytes)).sum::<u64>()
            };
            far.segments.iter().map(of).sum()
        };
        for (comparison, moved) in [(Comparison::Less, bytes(&[0])), (Comparison::Greater, bytes(&[0, 2, 3]))] {
            let predicate = of_id(comparison);
            let scan = far.scan(&predicate, Wanted::Columns(&[2, 3]));
            ends.run(bed, &far, Settings::default(), async |reader| {
                for path in ALL.iter().filter(|path| is_usable(path, bed) && path.name != "pushdown") {
                    let (_, counters) = answered(path, &reader, &scan).await.unwrap();
                    assert_eq!(counters.bytes_moved, moved, "{}", path.name);
                    assert_eq!(counters.reads == 0, path.name == "direct");
                }
            });
        }
    });
}

/// Counts what an agent's few bytes are worth.
#[test]
fn few_bytes_travel_by_pushdown() {
    on_each(|bed| {
        let random = &mut Random(6);
        let tables = (0..4).map(|_| table_of(random, Key::Id, &[ColumnType::Text], 4096)).collect();
        let far = Far::new(bed, tables, random);
        let mut predicate = Predicate::everything();
        predicate.push(Condition::Compare(0, Comparison::Equal, Constant::Integer(77)), 0.5);
        let ends = Ends::of(bed);
        ends.run(bed, &far, Settings::default(), async |reader| {
            let scan = far.scan(&predicate, Wanted::Columns(&[0, 1]));
            let (answer, counters) = answered(by_name("pushdown").unwrap(), &reader, &scan).await.unwrap();
            assert_eq!(answer.len(), 4);
            assert!(counters.bytes_moved < 4000, "{counters:?}");
        });
    });
}

/// A scan that is dropped after any number of polls leaves the endpoint and the mover as they were before.
#[test]
fn a_scan_may_be_given_up_at_any_time() {
    on_each(|bed| {
        let random = &mut Random(8);
        let tables = (0..6).map(|_| table_of(random, Key::Id, &[ColumnType::BigInt, ColumnType::Text], 3000)).collect();
        let far = Far::new(bed, tables, random);
        let predicate = of_id(Comparison::Greater);
        let settings =
            Settings { block_bytes: 9000, buffers: 3, segments_per_request: 2, requests: 2, reply_ns_max: LONG_NS };
        let expected = expected(&far, &predicate, Wanted::Columns(&[1, 2]));
        let ends = Ends::of(bed);
        ends.run(bed, &far, settings, async |reader| {
            let scan = far.scan(&predicate, Wanted::Columns(&[1, 2]));
            for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                for polls in 0..14 {
                    let mut take = |_: &Found<'_>| ControlFlow::Continue(());
                    let mut running = path.scan(&reader, &scan, &mut take);
                    let mut left = polls;
                    poll_fn(|cx| {
                        if left == 0 || running.as_mut().poll(cx).is_ready() {
                            return Poll::Ready(());
                        }
                        left -= 1;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    })
                    .await;
                    drop(running);
                    while ends.mover.under_way() > 0 {
                        reader.endpoint.handle().yield_now().await;
                    }
                }
                let (answer, _) = answered(path, &reader, &scan).await.unwrap();
                assert!(answer == expected, "{} after scans that were given up", path.name);
            }
        });
    });
}

#[test]
fn the_sink_may_end_a_scan() {
    on_each(|bed| {
        let random = &mut Random(9);
        let tables = (0..5).map(|_| table_of(random, Key::Id, &[ColumnType::BigInt], 2000)).collect();
        let far = Far::new(bed, tables, random);
        let predicate = of_id(Comparison::Greater);
        let ends = Ends::of(bed);
        for block_bytes in [1000, 1 << 20] {
            ends.run(bed, &far, Settings { block_bytes, ..Settings::default() }, async |reader| {
                let scan = far.scan(&predicate, Wanted::Columns(&[1]));
                for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                    let mut seen = Vec::new();
                    let mut take = |found: &Found<'_>| {
                        seen.push(found.segment);
                        if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    };
                    let counters = path.scan(&reader, &scan, &mut take).await.unwrap();
                    assert_eq!(seen, [0, 1], "{}", path.name);
                    assert_eq!(counters.rows_passing, 4000);
                }
            });
        }
    });
}

#[test]
fn a_path_that_cannot_be_used_says_why() {
    on_each(|bed| {
        let random = &mut Random(10);
        let far = Far::new(bed, vec![table_of(random, Key::Id, &[ColumnType::BigInt], 2000)], random);
        let everything = Predicate::everything();
        let ends = Ends::of(bed);
        ends.run(bed, &far, Settings::default(), async |reader| {
            let scan = far.scan(&everything, Wanted::Columns(&[1]));
            let why = async |name: &str, reader: &Reader<'_>, scan: &Scan<'_>| {
                let path = by_name(name).unwrap();
                let answer = answered(path, reader, scan).await;
                let expected = path.unusable(reader, scan);
                match answer {
                    Ok(_) => None,
                    Err(ScanError::Unusable { path, why }) => {
                        assert_eq!((path, Some(why)), (name, expected.or(Some(why))));
                        Some(why)
                    }
                    Err(error) => panic!("{name}: {error}"),
                }
            };
            let (node, region) = (HOME, REGION);
            let mapped = bed.maps();
            assert_eq!(why("direct", &reader, &scan).await, (!mapped).then_some(Why::NotMapped { node, region }));
            let without = Reader { mover: None, line: None, ..reader };
            assert_eq!(why("offload", &without, &scan).await, mapped.then_some(Why::NoMover { node, region }));
            assert_eq!(why("pushdown", &without, &scan).await, Some(Why::NoLine));
            assert_eq!(why("relaxed", &without, &scan).await, None);
            let mut long = Predicate::everything();
            long.push(Condition::In(1, vec![Constant::Integer(5); 10_000], false), 0.5);
            let scan = far.scan(&long, Wanted::Columns(&[1]));
            assert!(matches!(why("pushdown", &reader, &scan).await, Some(Why::LongRequest { .. })));
        });
    });
}

/// Chunks of one segment on several nodes, behind many segments that lie on one: more than all requests under way.
#[test]
fn scattered_segments() {
    on_each(|bed| {
        let random = &mut Random(11);
        let last = 40;
        let tables = (0..=last).map(|_| table_of(random, Key::Id, &[ColumnType::BigInt], 200)).collect();
        let mut far = Far::new(bed, tables, random);
        let own = bed.nodes[0].create_region(REGION, 1 << 16).unwrap();
        own.copy_in(64, &far.tables[last].chunks[1]).unwrap();
        far.segments[last].chunks[1].at = own.far_ptr(64);
        far.kept.0.insert(far.segments[last].chunks[1]);
        let predicate = of_id(Comparison::Greater);
        let expected = expected(&far, &predicate, Wanted::Columns(&[1]));
        let ends = Ends::of(bed);
        ends.run(bed, &far, Settings::default(), async |reader| {
            let scan = far.scan(&predicate, Wanted::Columns(&[1]));
            for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                match answered(path, &reader, &scan).await {
                    Ok((answer, _)) => assert!(answer == expected, "{}", path.name),
                    Err(error) => {
                        let why = Why::Scattered { segment: last };
                        assert_eq!(error, ScanError::Unusable { path: "pushdown", why });
                        // Another path may now be taken: the sink has had nothing.
                        let mut take = |_: &Found<'_>| -> ControlFlow<()> { panic!("the sink has had a segment") };
                        assert!(path.scan(&reader, &scan, &mut take).await.is_err());
                    }
                }
            }
            // Of the columns that are on one node, nothing is scattered.
            let scan = far.scan(&predicate, Wanted::Columns(&[0]));
            assert!(answered(by_name("pushdown").unwrap(), &reader, &scan).await.is_ok());
        });
    });
}

/// A region that is unmapped after the scan was made: the path either cannot be used, or gives every segment.
#[test]
fn a_region_that_is_unmapped_meanwhile() {
    let bed = Bed::shm();
    let random = &mut Random(16);
    let tables = (0..2).map(|_| table_of(random, Key::Id, &[ColumnType::BigInt], 200)).collect();
    let mut far = Far::new(&bed, tables, random);
    let predicate = of_id(Comparison::Greater);
    let (direct, other) = (by_name("direct").unwrap(), RegionId(8));
    for is_begun in [false, true] {
        let memory = bed.nodes[1].create_region(other, 1 << 16).unwrap();
        for (column, chunk) in far.tables[1].chunks.iter().enumerate() {
            let offset = 4096 * (column as u64 + 1);
            memory.copy_in(offset, chunk).unwrap();
            far.segments[1].chunks[column].at = memory.far_ptr(offset);
            far.kept.0.insert(far.segments[1].chunks[column]);
        }
        let ends = Ends::of(&bed);
        ends.run(&bed, &far, Settings::default(), async |reader| {
            let scan = far.scan(&predicate, Wanted::Columns(&[1]));
            let seen = std::cell::RefCell::new(Vec::new());
            // The bytes stay as they are, as long as someone has them mapped: `memory` does.
            let remove = || bed.nodes[1].remove_region(other).unwrap();
            let mut take = |found: &Found<'_>| {
                if found.segment == 0 && is_begun {
                    remove();
                }
                seen.borrow_mut().push(found.segment);
                ControlFlow::Continue(())
            };
            let running = direct.scan(&reader, &scan, &mut take);
            if !is_begun {
                remove();
            }
            let result = running.await.map(drop);
            if is_begun {
                assert_eq!((result, &seen.borrow()[..]), (Ok(()), &[0, 1][..]));
            } else {
                let why = Why::NotMapped { node: HOME, region: other };
                assert_eq!((result, seen.borrow().len()), (Err(ScanError::Unusable { path: "direct", why }), 0));
            }
        });
        drop(memory);
    }
}

/// Two scans that use one line at a time get their own replies, also if one of them is given up.
#[test]
fn scans_at_a_time_share_a_line() {
    on_each(|bed| {
        let random = &mut Random(17);
        let types = [ColumnType::BigInt, ColumnType::Text];
        let tables = (0..8).map(|_| table_of(random, Key::Id, &types, 2000)).collect();
        let far = Far::new(bed, tables, random);
        let predicate = of_id(Comparison::Greater);
        let settings = Settings { segments_per_request: 1, requests: 2, ..Settings::default() };
        let ends = Ends::of(bed);
        let wanted =
            [Wanted::Columns(&[1]), Wanted::Aggregates(&[Aggregate::Max(2), Aggregate::Max(2), Aggregate::Rows])];
        ends.run(bed, &far, settings, async |reader| {
            let pushdown = by_name("pushdown").unwrap();
            let scans = wanted.map(|wanted| far.scan(&predicate, wanted));
            let mut ignore = |_: &Found<'_>| ControlFlow::Continue(());
            let mut given_up = Some(pushdown.scan(&reader, &scans[0], &mut ignore));
            let mut running = scans.each_ref().map(|scan| Some(Box::pin(answered(pushdown, &reader, scan))));
            let (mut answers, mut turns) = ([None, None], 0);
            poll_fn(|cx| {
                turns += 1;
                if let Some(scan) = &mut given_up
                    && (scan.as_mut().poll(cx).is_ready() || turns == 5)
                {
                    given_up = None;
                }
                for (running, answer) in running.iter_mut().zip(&mut answers) {
                    if let Some(Poll::Ready(result)) = running.as_mut().map(|running| running.as_mut().poll(cx)) {
                        (*running, *answer) = (None, Some(result.unwrap().0));
                    }
                }
                if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            for (answer, wanted) in answers.into_iter().zip(wanted) {
                assert!(answer == Some(expected(&far, &predicate, wanted)), "{wanted:?}");
            }
        });
    });
}

/// Segments that are none, chunks that are not kept, and chunks that lie outside.
#[test]
fn wrong_segments_are_errors() {
    on_each(|bed| {
        let random = &mut Random(12);
        let mut far = Far::new(bed, vec![table_of(random, Key::Id, &[ColumnType::BigInt], 2000)], random);
        let right = far.segments[0].clone();
        let predicate = of_id(Comparison::Greater);
        let outside = FarChunk { at: FarPtr::new(HOME, REGION, 1 << 40), ..right.chunks[0] };
        far.kept.0.insert(outside);
        let wrong = [
            FarSegment { rows: CHUNK_ROWS_MAX + 1, ..right.clone() },
            FarSegment {
                ended: vec![Bits::default(), [[0_u64; 15].as_slice(), &[1 << 63]].concat().try_into().unwrap()],
                ..right.clone()
            },
            FarSegment { chunks: right.chunks[..1].to_vec(), ..right.clone() },
            FarSegment {
                chunks: vec![FarChunk { bytes: right.chunks[0].bytes - 1, ..right.chunks[0] }, right.chunks[1]],
                ..right.clone()
            },
            FarSegment { chunks: vec![outside, right.chunks[1]], ..right.clone() },
            FarSegment { rows: 1999, ..right.clone() },
            FarSegment { chunks: vec![right.chunks[1], right.chunks[0]], ..right.clone() },
        ];
        let ends = Ends::of(bed);
        for (number, wrong) in wrong.into_iter().enumerate() {
            far.segments[0] = wrong;
            for block_bytes in [500, 1 << 20] {
                ends.run(bed, &far, Settings { block_bytes, ..Settings::default() }, async |reader| {
                    let scan = far.scan(&predicate, Wanted::Columns(&[1]));
                    for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                        let result = answered(path, &reader, &scan).await.map(drop);
                        let name = path.name;
                        match number {
                            0..4 => assert!(
                                matches!(result, Err(ScanError::Segment { segment: 0, .. })),
                                "{name}: {result:?}"
                            ),
                            4 => assert!(
                                matches!(
                                    result,
                                    Err(ScanError::Fabric(FabricError::OutOfBounds { .. })
                                        | ScanError::Refused(pushdown::Refusal::UnknownChunk { segment: 0 }))
                                ),
                                "{name}: {result:?}"
                            ),
                            5 => assert!(
                                matches!(
                                    result,
                                    Err(ScanError::Chunk { segment: 0, .. }
                                        | ScanError::Refused(pushdown::Refusal::Damaged { segment: 0 }))
                                ),
                                "{name}: {result:?}"
                            ),
                            // Both are columns of integers, so the chunks fit: the answer is another, and no panic.
                            _ => assert!(result.is_ok(), "{name}: {result:?}"),
                        }
                    }
                });
            }
        }
    });
}

/// Bytes that are no chunk, or damaged anywhere: a wrong answer at worst, and where the header is wrong an error.
#[test]
fn damaged_chunks_are_errors_and_no_panic() {
    on_each(|bed| {
        for seed in 0..10 {
            let random = &mut Random(100 + seed);
            let tables = vec![table_of(random, Key::Id, &TYPES, 2500)];
            let far = Far::new(bed, tables, random);
            let ends = Ends::of(bed);
            let column = random.below(TYPES.len() + 1);
            let chunk = far.segments[0].chunks[column];
            let intact = &far.tables[0].chunks[column];
            for kind in 0..4 {
                let mut bytes = intact.clone();
                match kind {
                    0 => bytes[random.below(4)] ^= 1 << random.below(8),
                    1 => bytes.fill(random.next() as u8),
                    // Anywhere, but mostly in the header.
                    _ => (0..4).for_each(|_| {
                        let limit = random.pick(&[64, 64, bytes.len()]);
                        let at = random.below(limit.min(bytes.len()));
                        bytes[at] ^= 1 << random.below(8);
                    }),
                }
                far.memory.copy_in(chunk.at.offset(), &bytes).unwrap();
                let mut predicate = Predicate::everything();
                predicate.push(Condition::Null(column, true), 0.5);
                predicate.push_any(vec![Predicate::everything(), random.predicate(&TYPES)]);
                for settings in [random.settings(), random.settings()] {
                    ends.run(bed, &far, settings, async |reader| {
                        for wanted in [Wanted::Columns(&[column, 0]), Wanted::Aggregates(&[Aggregate::Max(column)])] {
                            let mut all = Predicate::everything();
                            all.push(Condition::Any(vec![Vec::new()]), 1.0);
                            for predicate in [&predicate, &all] {
                                let scan = far.scan(predicate, wanted);
                                for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                                    let mut take = |_: &Found<'_>| ControlFlow::Continue(());
                                    let result = path.scan(&reader, &scan, &mut take).await;
                                    let is_error = matches!(
                                        result,
                                        Err(ScanError::Chunk { segment: 0, .. }
                                            | ScanError::Refused(pushdown::Refusal::Damaged { segment: 0 }))
                                    );
                                    assert!(result.is_ok() || is_error, "{}: {result:?}", path.name);
                                    assert!(is_error || kind > 1, "{}: {result:?}", path.name);
                                }
                            }
                        }
                    });
                }
                far.memory.copy_in(chunk.at.offset(), intact).unwrap();
            }
        }
    });
}

/// A sum with too many bits says so, by every path. One that has too many only meanwhile does not.
#[test]
fn sums_that_are_too_long() {
    let most = 10_i128.pow(38) - 1;
    let half = 9 * 10_i128.pow(37);
    check_sum([most; 3], &Value::Overflow);
    check_sum([-most; 3], &Value::Overflow);
    check_sum([half, half, -half], &Value::Integer(half));
    check_sum([-half, -half, half], &Value::Integer(-half));
}

fn check_sum(unscaled: [i128; 3], sum: &Value) {
    on_each(|bed| {
        let random = &mut Random(14);
        let types = [ColumnType::Decimal { precision: 38, scale: 0 }];
        let mut table = table_of(random, Key::Id, &types, 0);
        let mut builder = farhold_store::column::ChunkBuilder::new(&table.schema);
        for (id, unscaled) in unscaled.into_iter().enumerate() {
            let row = vec![Datum::Int(id as i32), Datum::Decimal { unscaled, scale: 0 }];
            let (mut key, mut bytes) = (Vec::new(), Vec::new());
            table.schema.encode_key(&row, &mut key).unwrap();
            table.schema.encode_value(&row, &mut bytes).unwrap();
            builder.append(&key, &bytes);
            table.rows.push((key, bytes));
            table.datums.push(row);
        }
        table.chunks = builder.finish();
        let far = Far::new(bed, vec![table], random);
        let everything = Predicate::everything();
        let ends = Ends::of(bed);
        ends.run(bed, &far, Settings::default(), async |reader| {
            let scan = far.scan(&everything, Wanted::Aggregates(&[Aggregate::Sum(1), Aggregate::Min(1)]));
            for path in ALL.iter().filter(|path| is_usable(path, bed)) {
                let mut values = Vec::new();
                let mut take = |found: &Found<'_>| {
                    let Values::Aggregates(of) = found.values else { panic!("aggregates are wanted") };
                    values.extend_from_slice(of);
                    ControlFlow::Continue(())
                };
                path.scan(&reader, &scan, &mut take).await.unwrap();
                let least = Value::Integer(unscaled.into_iter().min().expect("three"));
                assert_eq!(values, [sum.clone(), least], "{}", path.name);
            }
        });
    });
}

/// An engine that says which copy begins, and waits until it may end.
struct Gate {
    begun: Mutex<Sender<u64>>,
    go: Mutex<Receiver<()>>,
}

impl CopyEngine for Gate {
    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        self.begun.lock().unwrap().send(offset).unwrap();
        let waited = self.go.lock().unwrap().recv_timeout(Duration::from_nanos(LONG_NS));
        waited.map_err(|_| FabricError::Timeout { waited_ns: LONG_NS })?;
        from.copy_out(offset, to)
    }
}

/// While a block is scanned, the copy of the next one is under way: it has begun before the sink has the first segment, and ends only
/// when the sink says so.
#[test]
fn a_block_is_scanned_while_the_next_is_copied() {
    let bed = Bed::shm();
    let random = &mut Random(13);
    let tables = (0..6).map(|_| table_of(random, Key::Id, &[], 1000)).collect();
    let far = Far::new(&bed, tables, random);
    let ends = Ends::of(&bed);
    let ((begun, has_begun), (may_go, go)) = (channel(), channel());
    let mover = Mover::start(1, Gate { begun: Mutex::new(begun), go: Mutex::new(go) }).unwrap();
    let predicate = of_id(Comparison::Greater);
    // A block a segment.
    let settings =
        Settings { block_bytes: far.segments[0].chunks[0].bytes as usize, buffers: 2, ..Settings::default() };
    ends.run(&bed, &far, settings, async |reader| {
        let reader = Reader { mover: Some(&mover), ..reader };
        let scan = far.scan(&predicate, Wanted::Columns(&[]));
        let offset = |segment: usize| far.segments[segment].chunks[0].at.offset();
        may_go.send(()).unwrap();
        let mut take = |found: &Found<'_>| {
            let begins =
                |segment: usize| assert_eq!(has_begun.recv_timeout(Duration::from_nanos(LONG_NS)), Ok(offset(segment)));
            if found.segment == 0 {
                begins(0);
            }
            if found.segment < 5 {
                begins(found.segment + 1);
                may_go.send(()).unwrap();
            }
            ControlFlow::Continue(())
        };
        let counters = by_name("offload").unwrap().scan(&reader, &scan, &mut take).await.unwrap();
        assert_eq!((counters.rows_passing, counters.reads), (6000, 6));
    });
}

/// Counts the copies that have begun.
struct Counting(Arc<AtomicU32>);

impl CopyEngine for Counting {
    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        from.copy_out(offset, to)
    }
}

/// Of a block of many segments, as many at most wait for their late columns as there are buffers.
#[test]
fn few_segments_wait_for_late_columns() {
    let bed = Bed::shm();
    let random = &mut Random(18);
    let tables: Vec<Table> = (0..30).map(|_| table_of(random, Key::Id, &[ColumnType::BigInt], 50)).collect();
    let far = Far::new(&bed, tables, random);
    let ends = Ends::of(&bed);
    let predicate = of_id(Comparison::Greater);
    for buffers in [1, 2, 5] {
        let copies = Arc::new(AtomicU32::new(0));
        let mover = Mover::start(1, Counting(copies.clone())).unwrap();
        let settings = Settings { buffers, ..Settings::default() };
        ends.run(&bed, &far, settings, async |reader| {
            let reader = Reader { mover: Some(&mover), ..reader };
            let scan = far.scan(&predicate, Wanted::Columns(&[1]));
            // One block: a piece of the first column a segment.
            let mut of_block = 0;
            let mut take = |found: &Found<'_>| {
                while mover.under_way() > 0 {
                    std::thread::yield_now();
                }
                let begun = copies.load(Ordering::SeqCst);
                if found.segment == 0 {
                    of_block = begun - buffers as u32;
                    assert!(of_block <= 30, "{of_block}");
                }
                let late = begun - of_block;
                assert!(late as usize <= found.segment + buffers, "{late} copies, segment {}", found.segment);
                ControlFlow::Continue(())
            };
            by_name("offload").unwrap().scan(&reader, &scan, &mut take).await.unwrap();
            assert_eq!(copies.load(Ordering::SeqCst), of_block + 30);
        });
    }
}

/// A scan that is dropped while the mover works: the mover frees the buffer, and the next scan finds it idle.
#[test]
fn a_scan_that_is_dropped_in_the_middle_of_a_copy() {
    let bed = Bed::shm();
    let random = &mut Random(15);
    let tables = (0..4).map(|_| table_of(random, Key::Id, &[], 1000)).collect();
    let far = Far::new(&bed, tables, random);
    let ends = Ends::of(&bed);
    let ((begun, has_begun), (may_go, go)) = (channel(), channel());
    let mover = Mover::start(1, Gate { begun: Mutex::new(begun), go: Mutex::new(go) }).unwrap();
    let predicate = of_id(Comparison::Greater);
    let settings = Settings { block_bytes: 1, buffers: 3, ..Settings::default() };
    ends.run(&bed, &far, settings, async |reader| {
        let reader = Reader { mover: Some(&mover), ..reader };
        let scan = far.scan(&predicate, Wanted::Columns(&[]));
        let mut take = |_: &Found<'_>| -> ControlFlow<()> { panic!("no copy has ended") };
        let mut running = by_name("offload").unwrap().scan(&reader, &scan, &mut take);
        poll_fn(|cx: &mut Context<'_>| {
            assert!(Pin::new(&mut running).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert!(has_begun.recv_timeout(Duration::from_nanos(LONG_NS)).is_ok());
        assert_eq!(mover.under_way(), 3);
        drop(running);
        may_go.send(()).unwrap();
        while mover.under_way() > 0 {
            reader.endpoint.handle().yield_now().await;
        }
        assert!(has_begun.try_recv().is_err(), "copies that waited did not begin");
    });
}
