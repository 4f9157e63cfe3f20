//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`.

use super::args::Args;
use super::budget::{Budget, Outcome, failed};
use super::ops;
use super::strings;
use super::text::Text;
use super::value::{SeqKind, Value};
use super::write;

/// The widest field.
const WIDTH_MAX: usize = 10_000;

/// How one value is laid out.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    is_alternate: bool,
    group: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Returns `text % value`.
///
/// # Errors
/// If text and values do not go together, or the budget is used up.
pub(super) fn percent(text: &Value, value: &Value, budget: &Budget) -> Outcome<Value> {
    let given = match value {
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => seq.items.clone(),
        other => vec![other.clone()],
    };
    let Some(text) = text.as_text() else { return failed("only text can be formatted") };
    // Python takes what has items for a mapping, whose items need not be used.
    let is_mapping = match value {
        Value::Seq(seq) => seq.kind != SeqKind::Tuple,
        other => matches!(other, Value::Map(_) | Value::Undefined(_)),
    };
    let mut next = given.into_iter();
    let mut out = Text::default();
    let whole = text.as_str();
    let mut at = 0;
    while let Some(found) = whole[at..].find('%').map(|from| at + from) {
        out.append_slice(text, at..found);
        let mut rest = &whole[found + 1..];
        let mut named = None;
        if let Some(after) = rest.strip_prefix('(') {
            let Some((name, after)) = after.split_once(')') else { return failed("incomplete format key") };
            named = Some(name);
            rest = after;
        }
        let (spec, after) = percent_spec(rest)?;
        at = whole.len() - after.len();
        if spec.kind == Some('%') {
            out.push_str("%");
            continue;
        }
        let value = match named {
            Some(name) => match value.field(name) {
                Some(value) => value.clone(),
                None => return failed(format!("there is no format key '{name}'")),
            },
            None => match next.next() {
                Some(value) => value,
                None => return failed("not enough arguments for format string"),
            },
        };
        percent_value(&value, spec, text.is_markup(), &mut out, budget)?;
    }
    if !is_mapping && next.next().is_some() {
        return failed("not all arguments converted during string formatting");
    }
    out.append_slice(text, at..whole.len());
    Ok(Value::made(if text.is_markup() { out.into_markup() } else { out }))
}

fn percent_spec(text: &str) -> Outcome<(Spec, &str)> {
    let mut spec = Spec::default();
    let flags = text.len() - text.trim_start_matches(['-', '+', ' ', '0', '#']).len();
    for flag in text[..flags].chars() {
        match flag {
            '-' => spec.align = Some('<'),
            '0' => spec.fill = Some('0'),
            '#' => spec.is_alternate = true,
            sign => spec.sign = Some(sign),
        }
    }
    let (width, rest) = number(&text[flags..])?;
    spec.width = width.unwrap_or_default();
    let rest = precision(&mut spec, rest)?;
    let mut chars = rest.chars();
    spec.kind = chars.next();
    if spec.kind.is_none() { failed("incomplete format") } else { Ok((spec, chars.as_str())) }
}

fn percent_value(value: &Value, spec: Spec, escapes: bool, out: &mut Text, budget: &Budget) -> Outcome<()> {
    let kind = spec.kind.unwrap_or('s');
    match kind {
        's' if escapes => {
            let text = write::string(value, budget)?;
            let text = if text.is_markup() { text } else { strings::escaped(&text, budget)? };
            text_field(text, spec, '>', out, budget)
        }
        's' => text_field(write::string(value, budget)?, spec, '>', out, budget),
        'r' | 'a' => {
            let mut text = Text::default();
            write::repr(value, &mut text, budget)?;
            text_field(text, spec, '>', out, budget)
        }
        'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) => {
            text_field(write::string(value, budget)?, spec, '>', out, budget)
        }
        'd' | 'i' | 'u' => match value.as_float() {
            Some(number) => {
                let whole = value.as_int().unwrap_or(number.trunc() as i128);
                number_field(&Value::Int(whole), Spec { kind: Some('d'), ..spec }, out, budget)
            }
            None => failed(format!("%{kind} format: a real number is required, not {}", value.type_name())),
        },
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            number_field(value, Spec { kind: Some(kind), ..spec }, out, budget)
        }
        other => failed(format!("unsupported format character '{other}'")),
    }
}

/// Returns `text.format(...)`.
///
/// # Errors
/// If text and values do not go together, or the budget is used up.
pub(super) fn braces(text: &Text, args: &Args, budget: &Budget) -> Outcome<Text> {
    let whole = text.as_str();
    let mut out = Text::default();
    let mut at = 0;
    let mut next = 0;
    while let Some(found) = whole[at..].find(['{', '}']).map(|from| at + from) {
        out.append_slice(text, at..found);
        let rest = &whole[found..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.append_slice(text, found..found + 1);
            at = found + 2;
            continue;
        }
        let Some(end) = rest.find('}').filter(|end| *end > 0) else {
            return failed("a brace in a format string is single");
        };
        let field = &rest[1..end];
        if field.contains('{') {
            return failed("a field within a format is not supported");
        }
        at = found + end + 1;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').map_or((field, None), |(field, c)| (field, Some(c)));
        let value = braces_value(field, args, &mut next, budget)?;
        let (spec, rest) = braces_spec(spec)?;
        if !rest.is_empty() {
            return failed("invalid format specifier");
        }
        let value = match conversion {
            None => value,
            Some("s") => Value::made(write::string(&value, budget)?),
            Some(_) => {
                let mut text = Text::default();
                write::repr(&value, &mut text, budget)?;
                Value::made(text)
            }
        };
        match value {
            Value::Int(_) | Value::Float(_) if spec.kind != Some('s') => {
                number_field(&value, spec, &mut out, budget)?
            }
            other => text_field(write::string(&other, budget)?, spec, '<', &mut out, budget)?,
        }
    }
    out.append_slice(text, at..whole.len());
    Ok(out)
}

/// Returns the value that a field names: a position or a name, then attributes and items.
fn braces_value(field: &str, args: &Args, next: &mut usize, budget: &Budget) -> Outcome<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let name = &field[..end];
    let found = match name.parse::<usize>() {
        Ok(at) => args.pos.get(at),
        Err(_) if name.is_empty() => {
            *next += 1;
            args.pos.get(*next - 1)
        }
        Err(_) => args.named.iter().find(|(known, _)| known == name).map(|(_, value)| value),
    };
    let Some(found) = found else { return failed(format!("there is no format field '{name}'")) };
    let mut value = found.clone();
    let mut rest = &field[end..];
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = ops::attribute(&value, &after[..end], budget)?;
            rest = &after[end..];
        } else {
            let inner = rest.strip_prefix('[').and_then(|after| after.split_once(']'));
            let Some((key, after)) = inner else { return failed("a format field is malformed") };
            let key = key.parse().map_or_else(|_| Value::text(key), Value::Int);
            value = ops::item(&value, &key, budget)?;
            rest = after;
        }
    }
    Ok(value)
}

fn braces_spec(text: &str) -> Outcome<(Spec, &str)> {
    let mut spec = Spec::default();
    let mut rest = text;
    let is_align = |c: char| matches!(c, '<' | '>' | '^' | '=');
    let mut chars = rest.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if is_align(align) => {
            spec.fill = Some(fill);
            spec.align = Some(align);
            rest = chars.as_str();
        }
        (Some(align), _) if is_align(align) => {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        _ => {}
    }
    if let Some(sign) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | ' ')) {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.is_alternate = true;
        rest = after;
    }
    if rest.starts_with('0') && spec.fill.is_none() {
        spec.fill = Some('0');
    }
    let (width, after) = number(rest)?;
    spec.width = width.unwrap_or_default();
    rest = after;
    if let Some(group) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
        spec.group = Some(group);
        rest = &rest[1..];
    }
    rest = precision(&mut spec, rest)?;
    let mut chars = rest.chars();
    spec.kind = chars.next();
    Ok((spec, chars.as_str()))
}

fn number(text: &str) -> Outcome<(Option<usize>, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    if digits.is_empty() {
        return Ok((None, rest));
    }
    match digits.parse().ok().filter(|number| *number <= WIDTH_MAX) {
        Some(number) => Ok((Some(number), rest)),
        None => failed(format!("a format's width is at most {WIDTH_MAX}")),
    }
}

fn precision<'t>(spec: &mut Spec, text: &'t str) -> Outcome<&'t str> {
    let Some(after) = text.strip_prefix('.') else { return Ok(text) };
    let (digits, rest) = number(after)?;
    spec.precision = Some(digits.unwrap_or_default());
    Ok(rest)
}

fn text_field(text: Text, spec: Spec, align: char, out: &mut Text, budget: &Budget) -> Outcome<()> {
    let kept = match spec.precision.and_then(|most| text.as_str().char_indices().nth(most)) {
        Some((end, _)) => text.slice(0..end),
        None => text,
    };
    let missing = spec.width.saturating_sub(kept.as_str().chars().count());
    budget.charge(kept.len() + missing)?;
    let before = match spec.align.unwrap_or(align) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = spec.fill.filter(|fill| *fill != '0' || spec.align.is_some()).unwrap_or(' ').to_string();
    out.push_str(&fill.repeat(before));
    out.append(&kept);
    out.push_str(&fill.repeat(missing - before));
    Ok(())
}

fn number_field(value: &Value, spec: Spec, out: &mut Text, budget: &Budget) -> Outcome<()> {
    let Some(number) = value.as_float() else {
        return failed(format!("a number is required, not {}", value.type_name()));
    };
    let digits = spec.precision.unwrap_or(6);
    let whole = value.as_int();
    let is_negative = number < 0.0;
    let written = match (spec.kind, whole) {
        (Some('d') | None, Some(whole)) => whole.unsigned_abs().to_string(),
        (Some('x'), Some(whole)) => alternate(&spec, "0x", format!("{:x}", whole.unsigned_abs())),
        (Some('X'), Some(whole)) => alternate(&spec, "0X", format!("{:X}", whole.unsigned_abs())),
        (Some('o'), Some(whole)) => alternate(&spec, "0o", format!("{:o}", whole.unsigned_abs())),
        (Some('b'), Some(whole)) => alternate(&spec, "0b", format!("{:b}", whole.unsigned_abs())),
        (Some('f' | 'F'), _) => format!("{:.digits$}", number.abs()),
        (Some('%'), _) => format!("{:.digits$}%", number.abs() * 100.0),
        (Some(kind @ ('e' | 'E')), _) => scientific(number.abs(), digits, kind),
        (None, None) if spec.precision.is_none() => write::float(number.abs()),
        (Some('g' | 'G') | None, _) => general(number.abs(), digits.max(1)),
        (Some(kind), _) => return failed(format!("unknown format code '{kind}'")),
    };
    let written = spec.group.map_or(written.clone(), |group| grouped(&written, group));
    let sign = match spec.sign {
        _ if is_negative => "-",
        Some('+') => "+",
        Some(' ') => " ",
        _ => "",
    };
    let missing = spec.width.saturating_sub(written.chars().count() + sign.len());
    budget.charge(written.len() + missing + 1)?;
    let fill = spec.fill.unwrap_or(' ').to_string();
    let default = if spec.fill == Some('0') { '=' } else { '>' };
    let (before, inner) = match spec.align.unwrap_or(default) {
        '<' => (0, 0),
        '^' => (missing / 2, 0),
        '=' => (0, missing),
        _ => (missing, 0),
    };
    // Zeros never stand behind a number.
    let after = if spec.fill == Some('0') && spec.align == Some('<') { " " } else { &fill };
    let text = [
        &*fill.repeat(before),
        sign,
        &*fill.repeat(inner),
        &written,
        &*after.repeat(missing - before - inner),
    ];
    out.push_str(&text.concat());
    Ok(())
}

fn alternate(spec: &Spec, prefix: &str, digits: String) -> String {
    if spec.is_alternate { format!("{prefix}{digits}") } else { digits }
}

fn scientific(number: f64, digits: usize, kind: char) -> String {
    let written = format!("{number:.digits$e}");
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{kind}{sign}{:02}", exponent.abs())
}

/// C's `%g`.
fn general(number: f64, digits: usize) -> String {
    let written = scientific(number, digits - 1, 'e');
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let exponent: i64 = exponent.parse().unwrap_or_default();
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i64 {
        return format!("{}e{}", short(mantissa), &written[mantissa.len() + 1..]);
    }
    let places = usize::try_from(digits as i64 - 1 - exponent).unwrap_or_default();
    short(&format!("{number:.places$}"))
}

/// Returns digits with a separator between thousands.
fn grouped(digits: &str, separator: char) -> String {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (at, digit) in digits[..end].chars().enumerate() {
        if at > 0 && (end - at).is_multiple_of(3) {
            out.push(separator);
        }
        out.push(digit);
    }
    out + &digits[end..]
}
