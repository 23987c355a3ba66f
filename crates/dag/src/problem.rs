//! What is wrong with a DAG, and where.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use serde::Serialize;
use tenure_contract::suggest;

use crate::yaml::At;

/// Problems that are listed of one text; further ones are only counted.
pub const PROBLEMS: usize = 1_000;
/// Searches for a near name. Each may look at every job of a DAG.
const SUGGESTIONS: u32 = 64;
/// Longer names are not searched for.
const SUGGESTION_CHARS: usize = 64;
/// Characters of the text that a message repeats.
const QUOTED_CHARS: usize = 80;

/// An error or a warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Counted from 1, like `column`.
    pub line: u32,
    /// In characters.
    pub column: u32,
    pub job: Option<Arc<str>>,
    /// The path of the value, within the job if there is one: `inputs[0].from.job`.
    pub field: String,
    pub code: Code,
    pub message: String,
}

macro_rules! codes {
    ($($name:ident = $word:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($name,)*
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    Syntax = "syntax",
    BodyTooLarge = "body_too_large",
    TooDeep = "too_deep",
    TooManyValues = "too_many_values",
    TooManyErrors = "too_many_errors",
    SeveralDocuments = "several_documents",
    Anchor = "anchor_not_allowed",
    Tag = "tag_not_allowed",
    DuplicateKey = "duplicate_key",
    UnknownKey = "unknown_key",
    ReservedKey = "reserved_key",
    MissingField = "missing_field",
    WrongType = "wrong_type",
    InvalidValue = "invalid_value",
    OutOfRange = "out_of_range",
    InvalidName = "invalid_name",
    NotAllowed = "not_allowed",
    DuplicateJob = "duplicate_job",
    DuplicateAlias = "duplicate_alias",
    UnknownJob = "unknown_job",
    UnknownOutput = "unknown_output",
    UnknownDataset = "unknown_dataset",
    UnknownRuntime = "unknown_runtime",
    UnknownOperator = "unknown_operator",
    UnknownColumn = "unknown_column",
    Cycle = "cycle",
    BulkStrategy = "bulk_not_supported",
    DefaultStrategy = "default_execution_strategy",
    MissingUniqueKey = "missing_unique_key",
    UnstableUniqueKey = "unstable_unique_key",
    SecretsNotAllowed = "secrets_not_allowed",
    UdfRequired = "udf_required",
    UdfNotAllowed = "udf_not_allowed",
    BundlesUnavailable = "bundles_unavailable",
    UnknownBundle = "unknown_bundle",
    EntrypointMismatch = "entrypoint_mismatch",
    EntrypointHandler = "entrypoint_is_handler",
    EnvNotAllowed = "env_not_allowed",
    InvalidSchedule = "invalid_schedule",
    WebhookPathInUse = "webhook_path_in_use",
    SecretNotConfigured = "secret_not_configured",
    TooManyDags = "too_many_dags",
    TooManyJobs = "too_many_jobs",
    DeploymentTooLarge = "deployment_too_large",
    ConfigTooLarge = "config_too_large",
    SeveralProducers = "several_producers",
    DatasetInUse = "dataset_in_use",
    PublishedTwice = "output_published_twice",
    DirectTable = "direct_table_output",
    BufferedStorage = "buffered_storage",
    MissingSchema = "missing_schema",
    InvalidSchema = "invalid_schema",
    IncompatibleSchema = "incompatible_schema",
    RangesMismatch = "ranges_mismatch",
    InvalidWhere = "invalid_where",
    WhereField = "where_unknown_field",
    WhereType = "where_type",
    NoEffect = "no_effect",
    StillRead = "dataset_still_read",
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The part of a DAG that is being read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    job: Option<Arc<str>>,
    field: String,
}

impl Place {
    pub fn job(name: &Arc<str>) -> Self {
        Self { job: Some(name.clone()), field: String::new() }
    }

    pub fn key(&self, key: &str) -> Self {
        let dot = if self.field.is_empty() { "" } else { "." };
        Self { job: self.job.clone(), field: format!("{}{dot}{}", self.field, quoted(key)) }
    }

    pub fn index(&self, index: usize) -> Self {
        Self { job: self.job.clone(), field: format!("{}[{index}]", self.field) }
    }
}

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Report {
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    more: Cell<usize>,
    suggestions: Cell<u32>,
}

impl Report {
    pub fn error(&self, at: At, place: &Place, code: Code, message: impl Into<String>) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < PROBLEMS - 1 {
            errors.push(problem(at, place, code, message.into()));
        } else {
            self.more.set(self.more.get() + 1);
        }
    }

    pub fn warning(&self, at: At, place: &Place, code: Code, message: impl Into<String>) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < PROBLEMS {
            warnings.push(problem(at, place, code, message.into()));
        }
    }

    /// `; did you mean 'NAME'?`, or nothing.
    pub fn meant<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
        let asked = self.suggestions.get();
        if asked >= SUGGESTIONS || word.len() > SUGGESTION_CHARS {
            return String::new();
        }
        self.suggestions.set(asked + 1);
        let near = suggest::nearest(word, known);
        near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"))
    }

    pub fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// The errors and the warnings, each in the order of the text.
    pub fn finish(self) -> (Vec<Problem>, Vec<Problem>) {
        let (mut errors, mut warnings) = (self.errors.into_inner(), self.warnings.into_inner());
        let place = |problem: &Problem| (problem.line, problem.column);
        errors.sort_by_key(place);
        warnings.sort_by_key(place);
        if self.more.get() > 0 {
            let message = format!("{} more errors are not listed", self.more.get());
            let last = errors.last().map_or(At::START, |last| At { line: last.line, column: last.column });
            errors.push(problem(last, &Place::default(), Code::TooManyErrors, message));
        }
        (errors, warnings)
    }
}

fn problem(at: At, place: &Place, code: Code, message: String) -> Problem {
    Problem { line: at.line, column: at.column, job: place.job.clone(), field: place.field.clone(), code, message }
}

/// A part of the text for a message: short, and on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(QUOTED_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
