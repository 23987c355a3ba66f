//! Rules of what is read and published.

use tenure_dag::Code;

use super::{B, Case, refused, text};

#[test]
fn references() {
    for Case(text, job, field, code, part) in [
        Case(
            "job:\ninputs: [{ from: { job: @aa, output: 0 } }]",
            B,
            "inputs[0].from.job",
            Code::UnknownJob,
            "no job named 'aa'",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: @2 } }]",
            B,
            "inputs[0].from.output",
            Code::UnknownOutput,
            "the outputs 0 to 1",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: @-1 } }]",
            B,
            "inputs[0].from.output",
            Code::OutOfRange,
            "from 0",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @lables } }]",
            B,
            "inputs[0].from.dataset",
            Code::UnknownDataset,
            "did you mean 'labels'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @mine } }]",
            B,
            "inputs[0].from.dataset",
            Code::UnknownDataset,
            "no dataset named 'mine'",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @wide } }]",
            B,
            "inputs[0].from.dataset",
            Code::RangesMismatch,
            "half_open",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"adress = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::WhereField,
            "did you mean 'address'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ adress: x } }]",
            B,
            "inputs[0].where",
            Code::WhereField,
            "did you mean 'address'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::WhereType,
            "int64",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: [1, x] } }]",
            B,
            "inputs[0].where",
            Code::WhereType,
            "int64",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id = 1;\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "at character 13",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id IN (SELECT 1)\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "subqueries",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"lower(address) = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "functions",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: [] } }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "empty",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: null } }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "IS NULL",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @[1] }]",
            B,
            "inputs[0].where",
            Code::WrongType,
            "expected a text",
        ),
    ] {
        refused(text, job, field, code, part);
    }
    let none = text("job:\ninputs: [{ from: { job: a, output: @0 } }]").replace("outputs: 2", "outputs: 0");
    refused(&none, B, "inputs[0].from.output", Code::UnknownOutput, "no outputs");
    let own = text("job:\ninputs: [{ from: { job: a, output: 0 }, where: @\"n = 1\" }]")
        + "publish:\n  x: { from: { job: a, output: 0 }, schema: { columns: [{ name: m, type: int64 }] } }\n";
    refused(&own, B, "inputs[0].where", Code::WhereField, "'n'");
    let key = text("job:\nupdate_strategy: append\nunique_key: @[n]")
        + "publish:\n  x: { from: { job: b, output: 0 }, schema: { columns: [{ name: m, type: int64 }] } }\n";
    refused(&key, B, "unique_key", Code::UnknownColumn, "the dataset 'x' has no column 'n'");
}

#[test]
fn published_datasets() {
    const FROM: &str = "from: { job: a, output: 0 }";
    for (text, field, code, part) in [
        ("  @X: { FROM }", "X", Code::InvalidName, "lower-case"),
        ("  x: @1", "x", Code::WrongType, "expected a map"),
        ("  x: { FROM, @retention: 1 }", "x.retention", Code::UnknownKey, ""),
        ("  x: @{ storage: s3 }", "x.from", Code::MissingField, "required"),
        ("  x: { from: { @dataset: y, job: a, output: 0 } }", "x.from.dataset", Code::UnknownKey, ""),
        ("  x: { from: @[] }", "x.from", Code::MissingField, "at least one"),
        ("  x: { from: { job: @c, output: 0 } }", "x.from.job", Code::UnknownJob, "no job named 'c'"),
        ("  x: { from: { job: a, output: @2 } }", "x.from.output", Code::UnknownOutput, "0 to 1"),
        (
            "  x: { from: @[{ job: a, output: 0 }, { job: a, output: 1 }] }",
            "x.from",
            Code::SeveralProducers,
            "buffered",
        ),
        (
            "  x: { FROM }\n  y: { from: { job: @a, output: 0 } }",
            "y.from.job",
            Code::PublishedTwice,
            "already published as 'x'",
        ),
        ("  x: { FROM, storage: @gcs }", "x.storage", Code::InvalidValue, "s3, postgres"),
        ("  x: { FROM, write_mode: @queued }", "x.write_mode", Code::InvalidValue, "direct, buffered"),
        ("  x: { FROM, @buffer: { kind: queue } }", "x.buffer", Code::NotAllowed, "buffered datasets"),
        ("  x: @{ FROM, write_mode: buffered }", "x.schema", Code::MissingSchema, "needs a 'schema'"),
        ("  x: { FROM, write_mode: buffered, storage: @s3, SCHEMA }", "x.storage", Code::BufferedStorage, "postgres"),
        (
            "  x: { FROM, write_mode: buffered, buffer: { kind: @kafka }, SCHEMA }",
            "x.buffer.kind",
            Code::InvalidValue,
            "queue, sqs",
        ),
        (
            "  x: { FROM, write_mode: buffered, buffer: { max_receives: @0 }, SCHEMA }",
            "x.buffer.max_receives",
            Code::OutOfRange,
            "1 to 1000",
        ),
        (
            "  x: { FROM, write_mode: buffered, schema: @{ columns: [{ name: n, type: text }] } }",
            "x.schema.unique",
            Code::MissingField,
            "unique",
        ),
        ("  x: { FROM, schema: @{ unique: [org_id] } }", "x.schema.columns", Code::MissingField, "required"),
        ("  x: { FROM, schema: { columns: @[] } }", "x.schema.columns", Code::OutOfRange, "1 to 256"),
        (
            "  x: { FROM, schema: { columns: [@{ type: text }] } }",
            "x.schema.columns[0].name",
            Code::MissingField,
            "required",
        ),
        (
            "  x: { FROM, schema: { columns: [@{ name: n }] } }",
            "x.schema.columns[0].type",
            Code::MissingField,
            "required",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: @txt }] } }",
            "x.schema.columns[0].type",
            Code::InvalidSchema,
            "did you mean 'text'?",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: @n-m, type: text }] } }",
            "x.schema.columns[0].name",
            Code::InvalidName,
            "letters",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: @_seq, type: int64 }] } }",
            "x.schema.columns[0].name",
            Code::InvalidSchema,
            "platform",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: org_id, type: @text }] } }",
            "x.schema.columns[0].type",
            Code::InvalidSchema,
            "uuid",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }, { name: @n, type: text }] } }",
            "x.schema.columns[1].name",
            Code::InvalidSchema,
            "twice",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text, nullable: @no }] } }",
            "x.schema.columns[0].nullable",
            Code::WrongType,
            "true or false",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], unique: @[n] } }",
            "x.schema.unique",
            Code::InvalidSchema,
            "org_id",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: org_id, type: uuid }], unique: [org_id, @m] } }",
            "x.schema.unique[1]",
            Code::UnknownColumn,
            "'m'",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], indexes: [@n] } }",
            "x.schema.indexes[0]",
            Code::WrongType,
            "list of columns",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], indexes: [[@m]] } }",
            "x.schema.indexes[0][0]",
            Code::UnknownColumn,
            "'m'",
        ),
        ("  @labels: { FROM }", "labels", Code::DatasetInUse, "the DAG 'labels'"),
    ] {
        let schema = "schema: { columns: [{ name: org_id, type: uuid }], unique: [org_id] }";
        let case = format!("publish:\n{}", text.replace("FROM", FROM).replace("SCHEMA", schema));
        refused(&case, None, &format!("publish.{field}"), code, part);
    }
    let grown =
        "publish:\n  mine: { from: { job: make, output: 0 }, schema: @{ columns: [{ name: address, type: text }] } }";
    let grown = text(grown).replace("name: a,", "name: make,");
    refused(&grown, None, "publish.mine.schema", Code::IncompatibleSchema, "`chain_id` was removed");
    for runtime in ["sandbox", "lambda"] {
        let table = text("publish:\n  x: { from: { job: a, output: 0 }, storage: @postgres }");
        let table =
            table.replace("runtime: worker, operator: x", &format!("runtime: {runtime}, operator: alert_route"));
        refused(&table, None, "publish.x.storage", Code::DirectTable, "write_mode: buffered");
    }
    let query = text("job:\nruntime: dispatcher\noperator: query\nconfig: { query: SELECT 1 FROM a_0 }");
    let table = "publish:\n  x: { from: { job: b, output: 0 }, storage: @postgres }\n";
    refused(&(query + table), None, "publish.x.storage", Code::DirectTable, "whose result is in files");
    let ranges =
        text("publish:\n  @blocks: { from: { job: a, output: 0 } }").replace("name: d", "name: d\nranges: half_open");
    refused(&ranges, None, "publish.blocks", Code::RangesMismatch, "the DAG 'labels' reads 'blocks'");
}
