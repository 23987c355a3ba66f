//! Queries over files that a test has written.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::parquet::arrow::ArrowWriter;
use serde_json::Value;
use tempfile::TempDir;
use tenure_contract::query::process::{
    Ask, Bounds, Done, Failed, FileRef, Format, Frame, Frames, Place, ResultColumn, Source, View,
};
use tenure_query::run::{Runner, Settings};

pub const MIB: u64 = 1 << 20;

pub fn settings(spill: &Path) -> Settings {
    Settings {
        at_once: 4,
        waiting: 16,
        memory_bytes: 512 << 20,
        timeout: Duration::from_secs(600),
        spill: spill.to_owned(),
    }
}

/// A runner with a folder for files and one for what does not fit into memory.
pub struct Stand {
    pub runner: Arc<Runner>,
    pub files: TempDir,
    pub spill: TempDir,
}

impl Stand {
    pub fn new() -> Self {
        Self::with(|settings| settings)
    }

    pub fn with(change: impl FnOnce(Settings) -> Settings) -> Self {
        let (files, spill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let runner = Runner::new(change(settings(spill.path())));
        Self { runner, files, spill }
    }

    pub fn write(&self, key: &str, columns: Vec<(&str, ArrayRef)>) -> FileRef {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let path = self.files.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        FileRef { key: key.into(), bytes: path.metadata().unwrap().len() }
    }

    pub fn view(&self, names: &[&str], files: Vec<FileRef>) -> View {
        let place = Place::Folder { path: self.files.path().to_str().unwrap().into() };
        View {
            names: names.iter().map(ToString::to_string).collect(),
            source: Source::Files { place, files, columns: Vec::new() },
            condition: None,
        }
    }

    pub async fn run(&self, ask: Ask) -> Answer {
        let mut receive = self.runner.start(ask);
        let mut bytes = Vec::new();
        while let Some(piece) = receive.recv().await {
            bytes.extend_from_slice(&piece);
        }
        Answer::read(&bytes)
    }

    /// The rows of a query that succeeds.
    pub async fn rows(&self, sql: &str, views: &[View]) -> Value {
        self.run(ask(sql, views)).await.rows()
    }
}

pub fn ask(sql: &str, views: &[View]) -> Ask {
    Ask {
        query_id: "q".into(),
        sql: sql.into(),
        views: views.to_vec(),
        format: Format::Rows,
        bounds: Bounds { rows: Some(1_000), bytes: Some(10 * MIB), timeout_ms: 300_000, memory_bytes: 512 * MIB },
    }
}

#[derive(Debug)]
pub struct Answer {
    pub columns: Vec<ResultColumn>,
    pub reads: Vec<String>,
    pub data: Vec<u8>,
    pub end: Result<Done, Failed>,
}

impl Answer {
    pub fn read(bytes: &[u8]) -> Self {
        let (mut columns, mut reads, mut data, mut end) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut frames = Frames::default();
        frames.push(bytes);
        while let Some(frame) = frames.take().unwrap() {
            assert!(end.is_none(), "a frame after the last one");
            match frame {
                Frame::Begun(begun) => (columns, reads) = (begun.columns, begun.reads),
                Frame::Data(piece) => data.extend_from_slice(&piece),
                Frame::Done(done) => end = Some(Ok(done)),
                Frame::Failed(failed) => end = Some(Err(failed)),
            }
        }
        Self { columns, reads, data, end: end.expect("an answer without an end") }
    }

    pub fn rows(&self) -> Value {
        if let Err(failed) = &self.end {
            panic!("{failed:?}");
        }
        serde_json::from_str(&format!("[{}]", self.text())).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.data).unwrap()
    }

    pub fn done(&self) -> Done {
        *self.end.as_ref().unwrap()
    }

    pub fn failed(&self) -> &Failed {
        self.end.as_ref().expect_err("the query succeeded")
    }
}
