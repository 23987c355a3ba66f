//! DAGs and conditions, well meant or not.

use serde_json::Value;
use tenure_core::dag::filter::{DEPTH, TEXT_BYTES};
use tenure_core::dag::{Column, ColumnType, DagDefinition};
use tenure_dag::filter::{self, Dialect};
use tenure_dag::{Bundles, PROBLEMS, Settings, Surroundings};

const MESSAGE_BYTES: usize = 1_000;

/// The text of a DAG. What is accepted is stored and found again, and its graph has an order.
pub fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let settings = Settings { lambda_functions: ["*".to_owned()].into(), ..Settings::default() };
    let surroundings = Surroundings { bundles: Bundles::Unchecked, ..Surroundings::default() };
    match tenure_dag::parse(text, &settings, &surroundings) {
        Ok(parsed) => {
            let stored = serde_json::to_string(&parsed.definition).expect("a definition is JSON");
            let found: DagDefinition = serde_json::from_str(&stored).expect("what is stored is found");
            assert_eq!(found, parsed.definition);
            for job in &parsed.definition.jobs {
                let config: Value = serde_json::from_str(&job.config).expect("a configuration is JSON");
                assert!(config.is_object(), "{}", job.config);
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty() && problems.len() <= PROBLEMS, "{} problems", problems.len());
            let lines = u32::try_from(text.split(['\n', '\r']).count()).expect("few lines");
            for problem in problems {
                assert!(problem.message.len() < MESSAGE_BYTES, "a message of {} bytes", problem.message.len());
                assert!(!problem.message.contains('\n'), "a message of many lines: {}", problem.message);
                assert!((1..=lines.saturating_add(1)).contains(&problem.line), "line {} of {lines}", problem.line);
                assert!(problem.column >= 1);
            }
        }
    }
}

/// A condition. What is printed is read again, and no value gets into the SQL.
pub fn condition(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(Value::Object(map)) = serde_json::from_str(text)
        && let Ok(tree) = filter::from_map(&map)
    {
        assert_eq!(filter::parse(&filter::print(&tree)).as_ref(), Ok(&tree));
    }
    match filter::parse(text) {
        Ok(tree) => {
            assert!(text.len() <= TEXT_BYTES && tree.depth() <= DEPTH);
            let printed = filter::print(&tree);
            // Keywords and blanks are written out: a text near the limit may exceed it.
            if printed.len() <= TEXT_BYTES {
                assert_eq!(filter::parse(&printed).as_ref(), Ok(&tree), "{printed}");
            }
            let kinds = [ColumnType::Text, ColumnType::Int64, ColumnType::Float64, ColumnType::Timestamptz];
            for (kind, dialect) in
                kinds.into_iter().flat_map(|kind| [(kind, Dialect::Sqlite), (kind, Dialect::Postgres)])
            {
                let columns = [Column { name: "a".into(), kind, nullable: true }];
                if let Ok(sql) = filter::compile(&tree, &columns, dialect, 1) {
                    assert!(!sql.text.contains(';') && !sql.text.contains("--"), "{}", sql.text);
                }
            }
        }
        Err(error) => {
            assert!(error.message.len() < MESSAGE_BYTES && !error.message.contains('\n'), "{error}");
            assert!(error.position >= 1 && error.position <= text.chars().count() + 1, "{error}");
        }
    }
}
