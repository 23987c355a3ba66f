//! The functions that SQL may call. Only these are known to the planner as well.
//!
//! Left out on purpose: those that tell about the process, its settings or its files, and those whose result is as long
//! as an argument says.

const SCALAR: &str = "
    abs acos acosh ascii asin asinh atan atan2 atanh bit_length btrim cbrt ceil char_length character_length chr
    coalesce concat concat_ws contains cos cosh cot current_date current_time current_timestamp date_bin date_part
    date_trunc datepart datetrunc decode degrees encode ends_with exp factorial find_in_set floor from_unixtime gcd
    greatest ifnull initcap instr isnan iszero lcm least left length levenshtein ln log log10 log2 lower ltrim
    make_date nanvl now nullif nvl nvl2 octet_length overlay pi position pow power radians random regexp_count
    regexp_like regexp_replace replace reverse right round rtrim signum sin sinh split_part sqrt starts_with strpos
    substr substr_index substring substring_index tan tanh to_char to_date to_hex to_timestamp to_timestamp_micros
    to_timestamp_millis to_timestamp_nanos to_timestamp_seconds to_unixtime today translate trim trunc upper
";

const AGGREGATE: &str = "
    any_value approx_distinct approx_median approx_percentile_cont array_agg avg bit_and bit_or bit_xor bool_and
    bool_or corr count covar_pop covar_samp first_value grouping last_value max mean median min percentile_cont
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy stddev stddev_pop
    stddev_samp string_agg sum var var_pop var_samp
";

const WINDOW: &str = "
    cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
";

/// What SQL writes without calling a function, and the planner looks up as one.
const BEHIND_SYNTAX: &[&str] = &["get_field"];

pub fn listed() -> impl Iterator<Item = &'static str> {
    [SCALAR, AGGREGATE, WINDOW].into_iter().flat_map(str::split_ascii_whitespace)
}

/// Whether SQL may call it.
pub fn is_listed(name: &str) -> bool {
    listed().any(|listed| listed == name)
}

/// Whether the planner knows it.
pub fn is_registered(name: &str) -> bool {
    is_listed(name) || BEHIND_SYNTAX.contains(&name)
}
