//! Values of a result as JSON, and types of its columns as words.
//!
//! A number that a reader of JSON could not keep exactly is a string: unsigned 64-bit integers, decimals, NaN and
//! infinities. Times are RFC 3339 in UTC, bytes are base64, lists and structures are JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::array::{
    Array, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal128Type, Decimal256Type, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use jiff::Timestamp;
use jiff::civil::{Date, date};

/// Appends the JSON of one value.
pub fn write(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), ArrowError> {
    use DataType as T;
    if array.is_null(row) {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    match array.data_type() {
        T::Null => out.extend_from_slice(b"null"),
        T::Boolean => out.extend_from_slice(if array.as_boolean().value(row) { b"true" } else { b"false" }),
        T::Int8 => number(out, at::<Int8Type>(array, row)),
        T::Int16 => number(out, at::<Int16Type>(array, row)),
        T::Int32 => number(out, at::<Int32Type>(array, row)),
        T::Int64 => number(out, at::<Int64Type>(array, row)),
        T::UInt8 => number(out, at::<UInt8Type>(array, row)),
        T::UInt16 => number(out, at::<UInt16Type>(array, row)),
        T::UInt32 => number(out, at::<UInt32Type>(array, row)),
        T::UInt64 => text(out, &at::<UInt64Type>(array, row).to_string()),
        T::Float16 => float(out, at::<Float16Type>(array, row).to_f64()),
        T::Float32 => {
            let value = at::<Float32Type>(array, row);
            // Its own shortest form, not that of the nearest double.
            if value.is_finite() { json(out, &value) } else { float(out, value.into()) }
        }
        T::Float64 => float(out, at::<Float64Type>(array, row)),
        T::Decimal128(..) => text(out, &array.as_primitive::<Decimal128Type>().value_as_string(row)),
        T::Decimal256(..) => text(out, &array.as_primitive::<Decimal256Type>().value_as_string(row)),
        T::Utf8 => text(out, array.as_string::<i32>().value(row)),
        T::LargeUtf8 => text(out, array.as_string::<i64>().value(row)),
        T::Utf8View => text(out, array.as_string_view().value(row)),
        T::Binary => bytes(out, array.as_binary::<i32>().value(row)),
        T::LargeBinary => bytes(out, array.as_binary::<i64>().value(row)),
        T::BinaryView => bytes(out, array.as_binary_view().value(row)),
        T::FixedSizeBinary(_) => bytes(out, array.as_fixed_size_binary().value(row)),
        T::Date32 => day(out, i64::from(at::<Date32Type>(array, row))),
        T::Date64 => day(out, at::<Date64Type>(array, row).div_euclid(86_400_000)),
        T::Timestamp(unit, _) => moment(out, array, row, *unit),
        T::List(_) => list(out, array.as_list::<i32>(), row)?,
        T::LargeList(_) => list(out, array.as_list::<i64>(), row)?,
        T::FixedSizeList(..) => fixed_list(out, array.as_fixed_size_list(), row)?,
        T::Struct(_) => structure(out, array.as_struct(), row)?,
        T::Map(..) => map(out, array.as_map(), row)?,
        _ => text(out, &ArrayFormatter::try_new(array, &FormatOptions::default())?.value(row).to_string()),
    }
    Ok(())
}

/// A column whose values are there themselves, not as keys of a dictionary.
pub fn unpacked(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Dictionary(_, value) => cast(column, value),
        _ => Ok(column.clone()),
    }
}

fn at<T: ArrowPrimitiveType>(array: &dyn Array, row: usize) -> T::Native {
    array.as_primitive::<T>().value(row)
}

fn json(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    // Writing into memory does not fail, and these values all have a form in JSON.
    let _ = serde_json::to_writer(out, value);
}

fn number(out: &mut Vec<u8>, value: impl Into<i64>) {
    json(out, &value.into());
}

fn float(out: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        json(out, &value);
    } else if value.is_nan() {
        text(out, "NaN");
    } else {
        text(out, if value > 0.0 { "Infinity" } else { "-Infinity" });
    }
}

pub fn text(out: &mut Vec<u8>, value: &str) {
    json(out, &value);
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    text(out, &STANDARD.encode(value));
}

const EPOCH: Date = date(1970, 1, 1);

fn day(out: &mut Vec<u8>, days: i64) {
    let span = jiff::Span::new().try_days(days).ok();
    match span.and_then(|span| EPOCH.checked_add(span).ok()) {
        Some(day) => text(out, &day.to_string()),
        // Beyond the calendar: the number as it is.
        None => text(out, &days.to_string()),
    }
}

fn moment(out: &mut Vec<u8>, array: &dyn Array, row: usize, unit: TimeUnit) {
    let (value, per_second) = match unit {
        TimeUnit::Second => (at::<TimestampSecondType>(array, row), 1),
        TimeUnit::Millisecond => (at::<TimestampMillisecondType>(array, row), 1_000),
        TimeUnit::Microsecond => (at::<TimestampMicrosecondType>(array, row), 1_000_000),
        TimeUnit::Nanosecond => (at::<TimestampNanosecondType>(array, row), 1_000_000_000),
    };
    let nanoseconds = i128::from(value) * (1_000_000_000 / per_second);
    match Timestamp::from_nanosecond(nanoseconds) {
        Ok(moment) => text(out, &moment.to_string()),
        Err(_) => text(out, &value.to_string()),
    }
}

fn items(out: &mut Vec<u8>, values: &dyn Array) -> Result<(), ArrowError> {
    out.push(b'[');
    for row in 0..values.len() {
        if row > 0 {
            out.push(b',');
        }
        write(out, values, row)?;
    }
    out.push(b']');
    Ok(())
}

fn list<O: OffsetSizeTrait>(out: &mut Vec<u8>, array: &GenericListArray<O>, row: usize) -> Result<(), ArrowError> {
    items(out, array.value(row).as_ref())
}

fn fixed_list(out: &mut Vec<u8>, array: &FixedSizeListArray, row: usize) -> Result<(), ArrowError> {
    items(out, array.value(row).as_ref())
}

fn structure(out: &mut Vec<u8>, array: &StructArray, row: usize) -> Result<(), ArrowError> {
    out.push(b'{');
    for (at, (field, column)) in array.fields().iter().zip(array.columns()).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        text(out, field.name());
        out.push(b':');
        write(out, column.as_ref(), row)?;
    }
    out.push(b'}');
    Ok(())
}

/// An object; keys that are not strings are written as strings.
fn map(out: &mut Vec<u8>, array: &MapArray, row: usize) -> Result<(), ArrowError> {
    let entries = array.value(row);
    let (keys, values) = (entries.column(0), entries.column(1));
    out.push(b'{');
    for at in 0..entries.len() {
        if at > 0 {
            out.push(b',');
        }
        let mut key = Vec::new();
        write(&mut key, keys.as_ref(), at)?;
        if key.starts_with(b"\"") {
            out.append(&mut key);
        } else {
            text(out, &String::from_utf8_lossy(&key));
        }
        out.push(b':');
        write(out, values.as_ref(), at)?;
    }
    out.push(b'}');
    Ok(())
}

/// The word for a type.
pub fn word(kind: &DataType) -> String {
    use DataType as T;
    match kind {
        T::Null => "null".into(),
        T::Boolean => "bool".into(),
        T::Int8 => "int8".into(),
        T::Int16 => "int16".into(),
        T::Int32 => "int32".into(),
        T::Int64 => "int64".into(),
        T::UInt8 => "uint8".into(),
        T::UInt16 => "uint16".into(),
        T::UInt32 => "uint32".into(),
        T::UInt64 => "uint64".into(),
        T::Float16 | T::Float32 => "float32".into(),
        T::Float64 => "float64".into(),
        T::Decimal32(p, s) | T::Decimal64(p, s) | T::Decimal128(p, s) | T::Decimal256(p, s) => {
            format!("decimal({p},{s})")
        }
        T::Utf8 | T::LargeUtf8 | T::Utf8View => "text".into(),
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => "bytes".into(),
        T::Date32 | T::Date64 => "date".into(),
        T::Time32(_) | T::Time64(_) => "time".into(),
        T::Timestamp(_, Some(_)) => "timestamptz".into(),
        T::Timestamp(_, None) => "timestamp".into(),
        T::Duration(_) | T::Interval(_) => "interval".into(),
        T::List(item) | T::LargeList(item) | T::FixedSizeList(item, _) | T::ListView(item) | T::LargeListView(item) => {
            format!("list<{}>", word(item.data_type()))
        }
        T::Struct(_) => "struct".into(),
        T::Map(..) => "map".into(),
        T::Dictionary(_, value) => word(value),
        T::RunEndEncoded(_, value) => word(value.data_type()),
        T::Union(..) => "union".into(),
    }
}
