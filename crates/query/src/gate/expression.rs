//! Expressions.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, CeilFloorKind, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArgumentList, FunctionArguments, Interval, ObjectName, TypedString, UnaryOperator,
    WindowFrame, WindowFrameBound, WindowSpec, WindowType,
};

use super::{Gate, Refused, Verdict, functions, near, place_of, shown, unqualified};

fn refuse(construct: &str) -> Verdict {
    Err(Refused::new(format!("{construct} is not allowed")))
}

impl Gate<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Verdict {
        self.deeper(|gate| gate.expr_parts(expr))
    }

    fn expr_parts(&mut self, expr: &Expr) -> Verdict {
        match expr {
            // A column, or a field of one: there is nothing else that a name could lead to.
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) => Ok(()),
            Expr::Value(value) => self.literal(value),
            Expr::TypedString(TypedString { data_type: _, value, uses_odbc_syntax: false }) => self.literal(value),
            Expr::IsFalse(inner)
            | Expr::IsNotFalse(inner)
            | Expr::IsTrue(inner)
            | Expr::IsNotTrue(inner)
            | Expr::IsNull(inner)
            | Expr::IsNotNull(inner)
            | Expr::IsUnknown(inner)
            | Expr::IsNotUnknown(inner)
            | Expr::Nested(inner)
            | Expr::Extract { field: _, syntax: _, expr: inner } => self.expr(inner),
            Expr::Cast { kind, expr, data_type: _, array: false, format: None } => match kind {
                CastKind::Cast | CastKind::TryCast | CastKind::DoubleColon => self.expr(expr),
                CastKind::SafeCast => refuse("SAFE_CAST"),
            },
            Expr::Ceil { expr, field } | Expr::Floor { expr, field } => match field {
                CeilFloorKind::DateTimeField(_) => self.expr(expr),
                CeilFloorKind::Scale(scale) => {
                    self.literal(scale)?;
                    self.expr(expr)
                }
            },
            Expr::UnaryOp { op, expr } => match op {
                UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not => self.expr(expr),
                _ => refuse("this unary operator"),
            },
            Expr::BinaryOp { left, op, right } => {
                operator(op)?;
                self.expr(left)?;
                self.expr(right)
            }
            Expr::IsDistinctFrom(left, right)
            | Expr::IsNotDistinctFrom(left, right)
            | Expr::AtTimeZone { timestamp: left, time_zone: right }
            | Expr::Position { expr: left, r#in: right } => {
                self.expr(left)?;
                self.expr(right)
            }
            Expr::Like { negated: _, any: false, expr, pattern, escape_char }
            | Expr::ILike { negated: _, any: false, expr, pattern, escape_char }
            | Expr::SimilarTo { negated: _, expr, pattern, escape_char } => {
                escape_char.iter().try_for_each(|value| self.literal(value))?;
                self.expr(expr)?;
                self.expr(pattern)
            }
            Expr::Between { expr, negated: _, low, high } => {
                self.expr(expr)?;
                self.expr(low)?;
                self.expr(high)
            }
            Expr::InList { expr, list, negated: _ } => {
                self.expr(expr)?;
                self.each(list, Self::expr)
            }
            Expr::InSubquery { expr, subquery, negated: _ } => {
                self.expr(expr)?;
                self.query(subquery)
            }
            Expr::Exists { subquery, negated: _ } | Expr::Subquery(subquery) => self.query(subquery),
            Expr::Case { case_token: _, end_token: _, operand, conditions, else_result } => {
                operand.iter().try_for_each(|expr| self.expr(expr))?;
                for CaseWhen { condition, result } in conditions {
                    self.expr(condition)?;
                    self.expr(result)?;
                }
                else_result.iter().try_for_each(|expr| self.expr(expr))
            }
            Expr::Substring { expr, substring_from, substring_for, special: _, shorthand: _ } => {
                self.expr(expr)?;
                substring_from.iter().chain(substring_for).try_for_each(|expr| self.expr(expr))
            }
            Expr::Trim { trim_where: _, trim_what, expr, trim_characters } => {
                self.expr(expr)?;
                trim_what.iter().try_for_each(|expr| self.expr(expr))?;
                self.each(trim_characters.iter().flatten(), Self::expr)
            }
            Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                self.expr(expr)?;
                self.expr(overlay_what)?;
                self.expr(overlay_from)?;
                overlay_for.iter().try_for_each(|expr| self.expr(expr))
            }
            Expr::Tuple(parts) => self.each(parts, Self::expr),
            Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) => {
                self.each(sets.iter().flatten(), Self::expr)
            }
            Expr::Interval(Interval {
                value,
                leading_field: _,
                leading_precision: None,
                last_field: None,
                fractional_seconds_precision: None,
            }) => self.expr(value),
            Expr::Function(function) => self.function(function),
            other => refuse(kind_of(other)),
        }
    }

    fn function(&mut self, function: &Function) -> Verdict {
        let Function { name, uses_odbc_syntax, parameters, args, filter, null_treatment: _, over, within_group } =
            function;
        listed(name)?;
        if *uses_odbc_syntax || *parameters != FunctionArguments::None {
            return refuse("this form of a function call");
        }
        match args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(_) => return refuse("a subquery as the arguments of a function"),
            FunctionArguments::List(FunctionArgumentList { duplicate_treatment: _, args, clauses }) => {
                self.each(args, Self::argument)?;
                self.each(clauses, Self::clause)?;
            }
        }
        filter.iter().try_for_each(|expr| self.expr(expr))?;
        self.each(within_group, Self::order_expr)?;
        match over {
            None | Some(WindowType::NamedWindow(_)) => Ok(()),
            Some(WindowType::WindowSpec(window)) => self.window(window),
        }
    }

    fn argument(&mut self, argument: &FunctionArg) -> Verdict {
        match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.expr(expr),
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => Ok(()),
            FunctionArg::Unnamed(FunctionArgExpr::WildcardWithOptions(options)) => super::relation::wildcard(options),
            FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(_)) => {
                refuse("a qualified wildcard as an argument")
            }
            FunctionArg::Named { .. } | FunctionArg::ExprNamed { .. } => refuse("a named argument"),
        }
    }

    fn clause(&mut self, clause: &FunctionArgumentClause) -> Verdict {
        match clause {
            FunctionArgumentClause::IgnoreOrRespectNulls(_) => Ok(()),
            FunctionArgumentClause::OrderBy(exprs) => self.each(exprs, Self::order_expr),
            _ => refuse("this clause in the arguments of a function"),
        }
    }

    pub(super) fn window(&mut self, window: &WindowSpec) -> Verdict {
        let WindowSpec { window_name: _, partition_by, order_by, window_frame } = window;
        self.each(partition_by, Self::expr)?;
        self.each(order_by, Self::order_expr)?;
        let Some(WindowFrame { units: _, start_bound, end_bound }) = window_frame else { return Ok(()) };
        for bound in [Some(start_bound), end_bound.as_ref()].into_iter().flatten() {
            match bound {
                WindowFrameBound::CurrentRow => {}
                WindowFrameBound::Preceding(expr) | WindowFrameBound::Following(expr) => {
                    expr.iter().try_for_each(|expr| self.expr(expr))?;
                }
            }
        }
        Ok(())
    }
}

fn listed(name: &ObjectName) -> Verdict {
    let Some(plain) = unqualified(name) else {
        return Err(Refused::new("a qualified function is not allowed").at(place_of(name)));
    };
    if functions::is_listed(&plain) {
        return Ok(());
    }
    let construct = format!("the function{} is not allowed{}", shown(&plain), near(&plain, functions::listed()));
    Err(Refused::new(construct).at(place_of(name)))
}

fn operator(op: &BinaryOperator) -> Verdict {
    use BinaryOperator as Op;
    match op {
        Op::Plus
        | Op::Minus
        | Op::Multiply
        | Op::Divide
        | Op::Modulo
        | Op::StringConcat
        | Op::Gt
        | Op::Lt
        | Op::GtEq
        | Op::LtEq
        | Op::Eq
        | Op::NotEq
        | Op::And
        | Op::Or
        | Op::BitwiseOr
        | Op::BitwiseAnd
        | Op::BitwiseXor
        | Op::PGBitwiseXor
        | Op::PGBitwiseShiftLeft
        | Op::PGBitwiseShiftRight
        | Op::PGRegexMatch
        | Op::PGRegexIMatch
        | Op::PGRegexNotMatch
        | Op::PGRegexNotIMatch
        | Op::PGLikeMatch
        | Op::PGILikeMatch
        | Op::PGNotLikeMatch
        | Op::PGNotILikeMatch => Ok(()),
        _ => refuse("this operator"),
    }
}

/// A word for an expression that is refused.
fn kind_of(expr: &Expr) -> &'static str {
    match expr {
        Expr::CompoundFieldAccess { .. } => "a subscript",
        Expr::JsonAccess { .. } => "a path into JSON",
        Expr::Convert { .. } => "CONVERT",
        Expr::Cast { .. } => "this form of CAST",
        Expr::Collate { .. } => "COLLATE",
        Expr::Struct { .. } | Expr::Dictionary(_) | Expr::Map(_) => "a literal of a structure",
        Expr::Array(_) => "a literal of an array",
        Expr::Lambda(_) => "a lambda",
        Expr::AnyOp { .. } | Expr::AllOp { .. } => "ANY, SOME or ALL",
        Expr::InUnnest { .. } => "UNNEST",
        Expr::RLike { .. } => "RLIKE",
        Expr::MatchAgainst { .. } => "MATCH AGAINST",
        Expr::Prior(_) => "PRIOR",
        _ => "this expression",
    }
}
