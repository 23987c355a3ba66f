//! The gate of queries.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, ObjectName, Statement, TableFactor, Visit, Visitor};
use tenure_query::gate::{self, functions};

/// What an accepted tree has, found by a walk that shares nothing with the gate.
#[derive(Default)]
struct Seen {
    relations: BTreeSet<String>,
    ctes: BTreeSet<String>,
    functions: BTreeSet<String>,
    factors: bool,
}

fn one(name: &ObjectName) -> String {
    assert_eq!(name.0.len(), 1, "a qualified name passed");
    let ident = name.0[0].as_ident().expect("a name that is no identifier passed");
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}

impl Visitor for Seen {
    type Break = ();

    fn pre_visit_query(&mut self, query: &datafusion::sql::sqlparser::ast::Query) -> ControlFlow<()> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let name = &cte.alias.name;
            let quoted = name.quote_style.is_some();
            self.ctes.insert(if quoted { name.value.clone() } else { name.value.to_ascii_lowercase() });
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        self.relations.insert(one(relation));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        use TableFactor::{Derived, NestedJoin, Table};
        self.factors |= !matches!(factor, Table { args: None, .. } | Derived { .. } | NestedJoin { .. });
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.functions.insert(one(&function.name));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<()> {
        assert!(matches!(statement, Statement::Query(_)), "a statement other than SELECT passed");
        ControlFlow::Continue(())
    }
}

/// Nothing panics. What passes reads attached relations and its own CTEs, calls listed functions, and passes again as it
/// is printed.
pub fn pass(data: &[u8]) {
    let Ok(sql) = std::str::from_utf8(data) else { return };
    let attached: BTreeSet<String> = ["dataset", "raw_logs", "call"].map(String::from).into();
    let Ok(passed) = gate::pass(sql, &attached) else { return };
    let mut seen = Seen::default();
    let _ = passed.statement.visit(&mut seen);
    assert!(!seen.factors, "a relation that is no table passed");
    for relation in &seen.relations {
        assert!(attached.contains(relation) || seen.ctes.contains(relation), "the relation {relation} passed");
    }
    for function in &seen.functions {
        assert!(functions::is_listed(function), "the function {function} passed");
    }
    assert!(passed.reads.is_subset(&attached));
    let printed = passed.statement.to_string();
    if printed.len() <= gate::SQL_BYTES {
        let again = gate::pass(&printed, &attached);
        assert_eq!(again.map(|again| again.reads), Ok(passed.reads), "not the same when it is printed");
    }
}
