//! Queries, and what they read from.

use std::collections::BTreeSet;

use datafusion::sql::sqlparser::ast::{
    Cte, Distinct, Fetch, GroupByExpr, GroupByWithModifier, Ident, Join, JoinConstraint, JoinOperator, LimitClause,
    NamedWindowDefinition, NamedWindowExpr, ObjectName, ObjectNamePart, Offset, OrderBy, OrderByExpr, OrderByKind,
    Query, Select, SelectFlavor, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, SetQuantifier, TableAlias,
    TableFactor, TableWithJoins, Values, WildcardAdditionalOptions, With,
};

use super::{Gate, Refused, Verdict, near, normal, place_of, shown, unqualified};

fn refuse(construct: &str) -> Verdict {
    Err(Refused::new(format!("{construct} is not allowed")))
}

fn refuse_if(there: bool, construct: &str) -> Verdict {
    if there { refuse(construct) } else { Ok(()) }
}

impl Gate<'_> {
    /// The whole statement.
    pub(super) fn top(&mut self, query: &Query) -> Verdict {
        refuse_if(matches!(&*query.body, SetExpr::Values(_)), "VALUES as a statement")?;
        self.query(query)
    }

    pub(super) fn query(&mut self, query: &Query) -> Verdict {
        self.deeper(|gate| gate.query_parts(query))
    }

    fn query_parts(&mut self, query: &Query) -> Verdict {
        let Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        refuse_if(!locks.is_empty(), "locking (FOR UPDATE, FOR SHARE)")?;
        refuse_if(for_clause.is_some(), "FOR XML, JSON or BROWSE")?;
        refuse_if(settings.is_some(), "SETTINGS")?;
        refuse_if(format_clause.is_some(), "FORMAT")?;
        refuse_if(!pipe_operators.is_empty(), "the operator |>")?;
        self.scopes.push(BTreeSet::new());
        let verdict = (|| {
            with.iter().try_for_each(|with| self.with(with))?;
            self.set_expr(body)?;
            order_by.iter().try_for_each(|order| self.order_by(order))?;
            limit_clause.iter().try_for_each(|limit| self.limit(limit))?;
            fetch.iter().try_for_each(|fetch| self.fetch(fetch))
        })();
        self.scopes.pop();
        verdict
    }

    /// A CTE sees those before it, and not itself.
    fn with(&mut self, With { with_token: _, recursive, cte_tables }: &With) -> Verdict {
        refuse_if(*recursive, "WITH RECURSIVE")?;
        for Cte { alias, query, from, materialized, closing_paren_token: _ } in cte_tables {
            refuse_if(from.is_some(), "FROM after a CTE")?;
            refuse_if(materialized.is_some(), "MATERIALIZED")?;
            self.alias(alias)?;
            self.query(query)?;
            if let Some(scope) = self.scopes.last_mut() {
                scope.insert(normal(&alias.name));
            }
        }
        Ok(())
    }

    fn set_expr(&mut self, body: &SetExpr) -> Verdict {
        match body {
            SetExpr::Select(select) => self.deeper(|gate| gate.select(select)),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { left, op: _, set_quantifier, right } => {
                use SetQuantifier::{All, AllByName, ByName, Distinct, DistinctByName, None};
                match set_quantifier {
                    All | Distinct | None => {}
                    ByName | AllByName | DistinctByName => return refuse("BY NAME"),
                }
                self.deeper(|gate| gate.set_expr(left))?;
                self.deeper(|gate| gate.set_expr(right))
            }
            SetExpr::Values(Values { explicit_row: _, value_keyword: _, rows }) => {
                rows.iter().try_for_each(|row| self.each(&row.content, Self::expr))
            }
            SetExpr::Insert(_) => refuse("INSERT"),
            SetExpr::Update(_) => refuse("UPDATE"),
            SetExpr::Delete(_) => refuse("DELETE"),
            SetExpr::Merge(_) => refuse("MERGE"),
            SetExpr::Table(_) => refuse("TABLE"),
        }
    }

    fn select(&mut self, select: &Select) -> Verdict {
        let Select {
            select_token: _,
            optimizer_hints,
            distinct,
            select_modifiers,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from,
            lateral_views,
            prewhere,
            selection,
            connect_by,
            group_by,
            cluster_by,
            distribute_by,
            sort_by,
            having,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        refuse_if(into.is_some(), "INTO")?;
        refuse_if(!optimizer_hints.is_empty(), "a hint")?;
        refuse_if(select_modifiers.is_some(), "a modifier of SELECT")?;
        refuse_if(top.is_some(), "TOP")?;
        refuse_if(exclude.is_some(), "EXCLUDE")?;
        refuse_if(!lateral_views.is_empty(), "LATERAL VIEW")?;
        refuse_if(prewhere.is_some(), "PREWHERE")?;
        refuse_if(!connect_by.is_empty(), "CONNECT BY")?;
        refuse_if(!cluster_by.is_empty(), "CLUSTER BY")?;
        refuse_if(!distribute_by.is_empty(), "DISTRIBUTE BY")?;
        refuse_if(!sort_by.is_empty(), "SORT BY")?;
        refuse_if(value_table_mode.is_some(), "AS STRUCT or AS VALUE")?;
        refuse_if(!matches!(flavor, SelectFlavor::Standard), "FROM before SELECT")?;
        match distinct {
            None | Some(Distinct::All | Distinct::Distinct) => {}
            Some(Distinct::On(exprs)) => self.each(exprs, Self::expr)?,
        }
        self.each(from, Self::table_with_joins)?;
        self.each(projection, Self::select_item)?;
        self.each(selection, Self::expr)?;
        self.group_by(group_by)?;
        self.each(having, Self::expr)?;
        for NamedWindowDefinition(_, window) in named_window {
            match window {
                NamedWindowExpr::NamedWindow(_) => {}
                NamedWindowExpr::WindowSpec(window) => self.window(window)?,
            }
        }
        self.each(qualify, Self::expr)
    }

    fn select_item(&mut self, item: &SelectItem) -> Verdict {
        match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, alias: _ } => self.expr(expr),
            SelectItem::ExprWithAliases { .. } => refuse("more than one alias"),
            SelectItem::QualifiedWildcard(kind, options) => match kind {
                SelectItemQualifiedWildcardKind::ObjectName(name) if unqualified(name).is_some() => wildcard(options),
                _ => refuse("a wildcard of anything but a relation"),
            },
            SelectItem::Wildcard(options) => wildcard(options),
        }
    }

    fn group_by(&mut self, group_by: &GroupByExpr) -> Verdict {
        let (exprs, modifiers): (&[_], &[GroupByWithModifier]) = match group_by {
            GroupByExpr::All(modifiers) => (&[], modifiers),
            GroupByExpr::Expressions(exprs, modifiers) => (exprs, modifiers),
        };
        refuse_if(!modifiers.is_empty(), "WITH after GROUP BY")?;
        self.each(exprs, Self::expr)
    }

    fn order_by(&mut self, OrderBy { kind, interpolate }: &OrderBy) -> Verdict {
        refuse_if(interpolate.is_some(), "INTERPOLATE")?;
        match kind {
            OrderByKind::All(_) => Ok(()),
            OrderByKind::Expressions(exprs) => self.each(exprs, Self::order_expr),
        }
    }

    pub(super) fn order_expr(&mut self, OrderByExpr { expr, options: _, with_fill }: &OrderByExpr) -> Verdict {
        refuse_if(with_fill.is_some(), "WITH FILL")?;
        self.expr(expr)
    }

    fn limit(&mut self, limit: &LimitClause) -> Verdict {
        match limit {
            LimitClause::LimitOffset { limit, offset, limit_by } => {
                refuse_if(!limit_by.is_empty(), "LIMIT BY")?;
                self.each(limit, Self::expr)?;
                self.each(offset, |gate, Offset { value, rows: _ }| gate.expr(value))
            }
            LimitClause::OffsetCommaLimit { .. } => refuse("LIMIT with a comma"),
        }
    }

    fn fetch(&mut self, Fetch { with_ties, percent, quantity }: &Fetch) -> Verdict {
        refuse_if(*with_ties, "WITH TIES")?;
        refuse_if(*percent, "PERCENT")?;
        self.each(quantity, Self::expr)
    }

    fn table_with_joins(&mut self, TableWithJoins { relation, joins }: &TableWithJoins) -> Verdict {
        self.table_factor(relation)?;
        for Join { relation, global, join_operator } in joins {
            refuse_if(*global, "GLOBAL JOIN")?;
            self.table_factor(relation)?;
            self.join(join_operator)?;
        }
        Ok(())
    }

    fn join(&mut self, operator: &JoinOperator) -> Verdict {
        use JoinOperator as Op;
        let constraint = match operator {
            Op::Join(constraint)
            | Op::Inner(constraint)
            | Op::Left(constraint)
            | Op::LeftOuter(constraint)
            | Op::Right(constraint)
            | Op::RightOuter(constraint)
            | Op::FullOuter(constraint)
            | Op::CrossJoin(constraint)
            | Op::LeftSemi(constraint)
            | Op::RightSemi(constraint)
            | Op::LeftAnti(constraint)
            | Op::RightAnti(constraint) => constraint,
            Op::Semi(_) | Op::Anti(_) => return refuse("SEMI or ANTI JOIN without LEFT or RIGHT"),
            Op::CrossApply | Op::OuterApply => return refuse("APPLY"),
            Op::AsOf { .. } => return refuse("ASOF JOIN"),
            Op::StraightJoin(_) => return refuse("STRAIGHT_JOIN"),
            Op::ArrayJoin | Op::LeftArrayJoin | Op::InnerArrayJoin => return refuse("ARRAY JOIN"),
        };
        match constraint {
            JoinConstraint::On(expr) => self.expr(expr),
            JoinConstraint::Using(columns) => {
                refuse_if(columns.iter().any(|column| unqualified(column).is_none()), "a qualified name in USING")
            }
            JoinConstraint::Natural | JoinConstraint::None => Ok(()),
        }
    }

    fn table_factor(&mut self, factor: &TableFactor) -> Verdict {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_hints,
            } => {
                if args.is_some() {
                    return Err(table_function(name));
                }
                refuse_if(!with_hints.is_empty() || !index_hints.is_empty(), "a hint")?;
                refuse_if(version.is_some(), "a version of a relation")?;
                refuse_if(*with_ordinality, "WITH ORDINALITY")?;
                refuse_if(!partitions.is_empty(), "PARTITION")?;
                refuse_if(json_path.is_some(), "a path after a relation")?;
                refuse_if(sample.is_some(), "TABLESAMPLE")?;
                self.each(alias, Self::alias)?;
                self.relation(name)
            }
            TableFactor::Derived { lateral: _, subquery, alias, sample } => {
                refuse_if(sample.is_some(), "TABLESAMPLE")?;
                self.each(alias, Self::alias)?;
                self.query(subquery)
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                self.each(alias, Self::alias)?;
                self.deeper(|gate| gate.table_with_joins(table_with_joins))
            }
            TableFactor::Function { name, .. } => Err(table_function(name)),
            TableFactor::TableFunction { .. } => refuse("the table function TABLE()"),
            TableFactor::UNNEST { .. } => refuse("the table function UNNEST"),
            TableFactor::JsonTable { .. } => refuse("JSON_TABLE"),
            TableFactor::OpenJsonTable { .. } => refuse("OPENJSON"),
            TableFactor::XmlTable { .. } => refuse("XMLTABLE"),
            TableFactor::Pivot { .. } => refuse("PIVOT"),
            TableFactor::Unpivot { .. } => refuse("UNPIVOT"),
            TableFactor::MatchRecognize { .. } => refuse("MATCH_RECOGNIZE"),
            TableFactor::SemanticView { .. } => refuse("SEMANTIC_VIEW"),
        }
    }

    fn alias(&mut self, TableAlias { explicit: _, name: _, columns, at }: &TableAlias) -> Verdict {
        refuse_if(at.is_some(), "AT after an alias")?;
        refuse_if(columns.iter().any(|column| column.data_type.is_some()), "a type in an alias")
    }

    /// A CTE in scope or an attached view.
    fn relation(&mut self, name: &ObjectName) -> Verdict {
        if let [ObjectNamePart::Identifier(Ident { quote_style: Some('\''), .. })] = name.0.as_slice() {
            return Err(Refused::new("a string cannot be used as a relation").at(place_of(name)));
        }
        let Some(name_only) = unqualified(name) else {
            return Err(Refused::new("a qualified relation is not allowed: use its name alone").at(place_of(name)));
        };
        if self.scopes.iter().any(|scope| scope.contains(&name_only)) {
            return Ok(());
        }
        if self.attached.contains(&name_only) {
            self.reads.insert(name_only);
            return Ok(());
        }
        let near = near(&name_only, self.attached.iter().map(String::as_str));
        let construct = format!("the relation{} is none of the datasets of this query{near}", shown(&name_only));
        Err(Refused::new(construct).at(place_of(name)))
    }
}

fn table_function(name: &ObjectName) -> Refused {
    let named = unqualified(name).map_or_else(String::new, |name| shown(&name));
    Refused::new(format!("the table function{named} is not allowed")).at(place_of(name))
}

pub(super) fn wildcard(options: &WildcardAdditionalOptions) -> Verdict {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    let plain = opt_ilike.is_none()
        && opt_exclude.is_none()
        && opt_except.is_none()
        && opt_replace.is_none()
        && opt_rename.is_none()
        && opt_alias.is_none();
    refuse_if(!plain, "an option of a wildcard")
}
