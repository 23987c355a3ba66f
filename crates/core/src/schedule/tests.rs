use super::*;

use proptest::prelude::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn cron(text: &str, zone: &str) -> Schedule {
    Schedule::parse(text, zone).unwrap()
}

fn next(schedule: &Schedule, after: &str, count: usize) -> Vec<String> {
    schedule.slots_between(at(after), Timestamp::MAX, count).iter().map(Timestamp::to_string).collect()
}

#[test]
fn five_fields_in_utc() {
    for (text, after, expected) in [
        ("0 * * * *", "2026-03-01T10:00:00Z", ["2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z"]),
        ("0 * * * *", "2026-03-01T09:59:59.999Z", ["2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"]),
        ("*/20 9-10 * * MON-FRI", "2026-03-06T10:39:00Z", ["2026-03-06T10:40:00Z", "2026-03-09T09:00:00Z"]),
        ("15 6 1,15 * *", "2026-03-02T00:00:00Z", ["2026-03-15T06:15:00Z", "2026-04-01T06:15:00Z"]),
        // Two restricted days are joined by "or".
        ("0 0 13 * fri", "2026-03-01T00:00:00Z", ["2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"]),
        ("0 0 L * *", "2026-02-01T00:00:00Z", ["2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"]),
        ("0 0 29 2 *", "2026-03-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("0 0 * * 7", "2026-03-01T00:00:00Z", ["2026-03-08T00:00:00Z", "2026-03-15T00:00:00Z"]),
        ("  0\t0 * * MON#2 ", "2026-03-01T00:00:00Z", ["2026-03-09T00:00:00Z", "2026-04-13T00:00:00Z"]),
    ] {
        assert_eq!(next(&cron(text, "UTC"), after, 2), expected, "{text}");
    }
}

#[test]
fn rates_and_intervals_count_elapsed_time() {
    let daily = cron("rate(1 day)", "America/New_York");
    assert_eq!(next(&daily, "2026-03-07T12:00:00Z", 2), ["2026-03-08T00:00:00Z", "2026-03-09T00:00:00Z"]);
    assert_eq!(next(&cron("rate(15 minutes)", "UTC"), "2026-03-07T12:00:00Z", 1), ["2026-03-07T12:15:00Z"]);
    assert_eq!(next(&cron("rate(6 hours)", "UTC"), "2026-03-07T12:00:01Z", 1), ["2026-03-07T18:00:00Z"]);
    let anchored = Schedule::every(90_000, at("2026-03-07T12:00:10Z")).unwrap();
    assert_eq!(next(&anchored, "2026-03-07T12:00:09Z", 2), ["2026-03-07T12:00:10Z", "2026-03-07T12:01:40Z"]);
    assert_eq!(next(&anchored, "2026-03-07T12:00:10Z", 1), ["2026-03-07T12:01:40Z"]);
    assert_eq!(anchored.next_after(Timestamp::MAX), None);
    for period_ms in [i64::MIN, -1, 0, 999, 367 * 86_400_000, i64::MAX] {
        assert_eq!(Schedule::every(period_ms, Timestamp::MIN).unwrap_err().field, "interval");
    }
}

#[test]
fn errors_name_the_field_and_the_position() {
    for (text, field, position) in [
        ("", "schedule", 1),
        ("* * * *", "schedule", 1),
        ("0 * * * * *", "schedule", 11),
        ("@daily", "schedule", 1),
        ("60 * * * *", "minute", 1),
        ("0 24 * * *", "hour", 3),
        ("0 1,2,x * * *", "hour", 7),
        ("0 1,,2 * * *", "hour", 5),
        ("0 0 0 * *", "day of month", 5),
        ("0 0 1 13 *", "month", 7),
        ("0 0 1 JAN-FOO *", "month", 11),
        ("0 0 * * 8", "day of week", 9),
        ("0 0 * * MON,TUES", "day of week", 16),
        // Names stand for numbers in their own fields only.
        ("SUN 0 * * *", "minute", 1),
        ("0 JAN * * *", "hour", 3),
        ("0 0 * * +MON", "day of week", 9),
        ("*/0 * * * *", "minute", 1),
        ("0 0 30 2 *", "day of month", 5),
        ("é 0 * * *", "minute", 1),
        (" é\u{a0}0 * * *", "minute", 2),
        ("rate(0 days)", "rate", 1),
        (" rate(5)", "rate", 2),
        ("rate(5 weeks)", "rate", 1),
        ("rate(-5 hours)", "rate", 1),
        ("rate(999999 days)", "rate", 1),
        ("rate(5 hours", "rate", 1),
    ] {
        let error = Schedule::parse(text, "UTC").expect_err(text);
        assert_eq!((error.field, error.position), (field, position), "{text}: {error}");
    }
    assert_eq!(Schedule::parse("* * * * *", "Europe/Pariss").unwrap_err().field, "time zone");
    assert_eq!(Schedule::parse("* * * * *", "").unwrap_err().field, "time zone");
    assert_eq!(Schedule::parse(&"1".repeat(300), "UTC").unwrap_err().field, "schedule");
    let error = Schedule::parse("0 25 * * *", "UTC").unwrap_err().to_string();
    assert!(error.starts_with("hour at position 3: `25` is not valid here: numbers are 0 to 23"), "{error}");
}

/// Clocks in New York go from 02:00 to 03:00 on 2026-03-08 (07:00Z) and from 02:00 back to 01:00 on 2026-11-01 (06:00Z).
#[test]
fn a_fixed_time_in_a_gap_fires_at_its_end_and_once_in_an_overlap() {
    let gap = cron("30 2 * * *", "America/New_York");
    let expected = ["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"];
    assert_eq!(next(&gap, "2026-03-07T00:00:00Z", 3), expected);
    // The hour before the gap is not touched by it.
    let before = cron("0 1 * * *", "America/New_York");
    assert_eq!(next(&before, "2026-03-08T00:00:00Z", 2), ["2026-03-08T06:00:00Z", "2026-03-09T05:00:00Z"]);
    let overlap = cron("30 1 * * *", "America/New_York");
    let expected = ["2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"];
    assert_eq!(next(&overlap, "2026-10-31T00:00:00Z", 3), expected);
}

#[test]
fn a_repeated_pattern_skips_a_gap_and_fires_twice_in_an_overlap() {
    let half_hours = cron("*/30 * * * *", "America/New_York");
    let expected = ["2026-03-08T06:30:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"];
    assert_eq!(next(&half_hours, "2026-03-08T06:00:00Z", 3), expected);
    let two_hours = cron("15 1,2 * * *", "America/New_York");
    assert_eq!(next(&two_hours, "2026-03-08T00:00:00Z", 2), ["2026-03-08T06:15:00Z", "2026-03-09T05:15:00Z"]);
    let expected = ["2026-11-01T05:15:00Z", "2026-11-01T06:15:00Z", "2026-11-01T07:15:00Z"];
    assert_eq!(next(&two_hours, "2026-11-01T00:00:00Z", 3), expected);
}

/// Samoa had no 30 December 2011.
#[test]
fn a_missing_day_does_not_stop_a_schedule() {
    let noon = cron("0 12 * * *", "Pacific/Apia");
    let expected = ["2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"];
    assert_eq!(next(&noon, "2011-12-29T00:00:00Z", 4), expected);
    let hourly = cron("0 * * * *", "Pacific/Apia");
    assert_eq!(next(&hourly, "2011-12-30T08:30:00Z", 2), ["2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z"]);
}

#[test]
fn slots_end_at_the_bound_and_at_the_limit() {
    let hourly = cron("0 * * * *", "UTC");
    let (after, until) = (at("2026-03-01T00:00:00Z"), at("2026-03-01T05:00:00Z"));
    assert_eq!(hourly.slots_between(after, until, 100).len(), 5);
    assert_eq!(hourly.slots_between(after, until, 2), [at("2026-03-01T01:00:00Z"), at("2026-03-01T02:00:00Z")]);
    assert_eq!(hourly.slots_between(until, after, 2), []);
    assert_eq!(hourly.last_slots(after, until, 2), [at("2026-03-01T04:00:00Z"), at("2026-03-01T05:00:00Z")]);
    assert_eq!(hourly.last_slots(after, until, 100), hourly.slots_between(after, until, 100));
    assert_eq!(hourly.last_slots(until, after, 2), []);
    // Decades of minutes are not walked through.
    let minutes = cron("* * * 1 *", "Europe/Paris");
    let last = minutes.last_slots(Timestamp::MIN, at("2026-12-01T00:00:00Z"), 1);
    assert_eq!(last, [at("2026-01-31T22:59:00Z")]);
}

#[test]
fn the_time_zones_are_in_the_binary() {
    let names = timezones();
    assert!(names.len() > 400, "{}", names.len());
    for name in ["UTC", "Europe/Paris", "Australia/Lord_Howe"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
}

const ZONES: [&str; 6] =
    ["UTC", "America/New_York", "Europe/Paris", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"];

/// A set of values of one field, and how to write it.
fn field(low: u8, high: u8) -> impl Strategy<Value = (String, Vec<u8>)> {
    let all: Vec<u8> = (low..=high).collect();
    prop_oneof![
        Just(("*".to_owned(), all.clone())),
        proptest::sample::subsequence(all, 1..5).prop_map(|values| {
            let text: Vec<String> = values.iter().map(u8::to_string).collect();
            (text.join(","), values)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Against a walk through every minute of some days around a clock change.
    #[test]
    fn a_pattern_of_several_times_fires_at_every_minute_that_matches(
        (minute, minutes) in field(0, 59),
        (hour, hours) in field(0, 23),
        zone in proptest::sample::select(&ZONES[..]),
        start in proptest::sample::select(&["2026-03-07T00:00:00Z", "2026-03-28T00:00:00Z", "2026-04-03T00:00:00Z",
            "2026-10-03T00:00:00Z", "2026-10-24T00:00:00Z", "2026-10-31T00:00:00Z"][..]),
    ) {
        prop_assume!(minutes.len() > 1 || hours.len() > 1);
        let schedule = cron(&format!("{minute} {hour} * * *"), zone);
        let tz = jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap();
        let (after, until) = (at(start), at(start).plus(3 * 86_400_000));
        let mut expected = Vec::new();
        let mut point = after.plus(60_000);
        while point <= until {
            let local = jiff::Timestamp::from_millisecond(point.as_millis()).unwrap().to_zoned(tz.clone());
            if minutes.contains(&(local.minute() as u8)) && hours.contains(&(local.hour() as u8)) {
                expected.push(point);
            }
            point = point.plus(60_000);
        }
        prop_assert_eq!(schedule.slots_between(after, until, usize::MAX), expected);
    }

    #[test]
    fn a_fixed_time_fires_once_each_local_day(
        minute in 0u8..60, hour in 0u8..24, zone in proptest::sample::select(&ZONES[..]),
    ) {
        let schedule = cron(&format!("{minute} {hour} * * *"), zone);
        let tz = jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap();
        let slots = schedule.slots_between(at("2026-01-02T00:00:00Z"), at("2027-01-02T00:00:00Z"), usize::MAX);
        let days: Vec<_> = slots.iter().map(|slot| {
            jiff::Timestamp::from_millisecond(slot.as_millis()).unwrap().to_zoned(tz.clone()).date()
        }).collect();
        prop_assert!(days.windows(2).all(|pair| pair[0].tomorrow().unwrap() == pair[1]), "{:?}", days);
        prop_assert_eq!(days.len(), 365);
    }

    #[test]
    fn the_last_slots_are_the_end_of_all_slots(
        (minute, _) in field(0, 59), (hour, _) in field(0, 23), (day, _) in field(1, 28),
        zone in proptest::sample::select(&ZONES[..]), minutes_before in 0i64..100_000, limit in 0usize..50,
    ) {
        let schedule = cron(&format!("{minute} {hour} {day} * *"), zone);
        let until = at("2026-11-03T12:34:56.789Z");
        let after = until.plus(-minutes_before * 60_000);
        let all = schedule.slots_between(after, until, usize::MAX);
        prop_assert_eq!(schedule.last_slots(after, until, limit), &all[all.len().saturating_sub(limit)..]);
    }

    #[test]
    fn no_text_panics(text in ".{0,40}", zone in "[A-Za-z/_]{0,20}", odd in "[0-9*/,#LW?+ -]{0,30}") {
        let _ = Schedule::parse(&text, &zone);
        for text in [text.as_str(), &odd, &format!("rate({text})"), &format!("* * {odd} * *")] {
            if let Err(error) = Schedule::parse(text, "UTC") {
                prop_assert!(error.position >= 1 && error.position <= text.chars().count().max(1));
            }
        }
    }
}
