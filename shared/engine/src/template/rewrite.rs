//! Writes a parsed template out again, with counting filters of [`runtime`](super::runtime) for everything
//! that can make values grow.
//!
//! Text between tags becomes string literals, so the result needs no white space rules. A template cannot
//! redefine the filters: they are looked up only in the environment.

use std::fmt::Write as _;

use minijinja::machinery::ast::{
    BinOp, BinOpKind, CallArg, Compare, CompareOpKind, Expr, Filter, ForLoop, IfCond, Macro, Slice, Stmt,
    UnaryOpKind, WithBlock,
};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};

use super::TemplateError;

/// Returns Hugging Face's settings: a newline after a block tag and the white space before it are dropped.
pub(super) fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("the delimiters are the usual ones")
}

/// Parses a template and writes it out with counted operators.
///
/// # Errors
/// If the source is not Jinja or uses an unsupported construct.
pub(super) fn bounded(source: &str) -> Result<String, TemplateError> {
    let parsed =
        parse(source, "chat_template", syntax()).map_err(|err| TemplateError::Parse(Box::new(err)))?;
    let mut writer = Writer { out: String::with_capacity(source.len() * 2) };
    writer.statement(&parsed)?;
    Ok(writer.out)
}

/// The most bytes of a literal text that may be compared with anything without being counted.
const SMALL_BYTES: usize = 1_024;
/// Filters that return text, a number, or items of their input: nothing that nests deeper.
const PLAIN_RESULTS: &str = "abs attr bool capitalize count d default e escape first float int join last length \
    list lower max min reject rejectattr replace round safe select selectattr sort string title tojson trim unique \
    upper";
/// Filters that use their arguments once per item.
const EACH_ITEM: &[&str] = &["map", "reject", "rejectattr", "select", "selectattr"];

type Written = Result<(), TemplateError>;

fn unsupported<T>(what: &'static str) -> Result<T, TemplateError> {
    Err(TemplateError::Unsupported { what })
}

struct Writer {
    out: String,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn body(&mut self, statements: &[Stmt<'_>]) -> Written {
        statements.iter().try_for_each(|s| self.statement(s))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Template(t) => self.body(&t.children)?,
            Stmt::EmitRaw(raw) => {
                self.put("{{ ");
                self.string(raw.raw);
                self.put(" }}");
            }
            Stmt::EmitExpr(e) => {
                self.put("{{ ");
                self.expression(&e.expr)?;
                self.put(" }}");
            }
            Stmt::ForLoop(l) => self.for_loop(l)?,
            Stmt::IfCond(c) => {
                self.put("{% if ");
                self.branches(c)?;
            }
            Stmt::WithBlock(w) => self.with_block(w)?,
            Stmt::Set(s) => {
                self.put("{% set ");
                self.target(&s.target)?;
                self.put(" = ");
                if is_kept(&s.target, &s.expr) {
                    self.counted(&s.expr, "counted_kept")?;
                } else {
                    self.expression(&s.expr)?;
                }
                self.put(" %}");
            }
            Stmt::SetBlock(s) if s.filter.is_none() => {
                self.put("{% set ");
                self.target(&s.target)?;
                self.put(" %}");
                self.body(&s.body)?;
                self.put("{% endset %}");
            }
            Stmt::Macro(m) => self.definition(m)?,
            Stmt::Continue(_) => self.put("{% continue %}"),
            Stmt::Break(_) => self.put("{% break %}"),
            Stmt::Do(d) => {
                self.put("{% do ");
                self.operand(&d.call.expr)?;
                self.arguments(&d.call.args, of_call(&d.call.expr))?;
                self.put(" %}");
            }
            Stmt::SetBlock(_) => return unsupported("a filtered set block"),
            Stmt::FilterBlock(_) => return unsupported("a filter block"),
            Stmt::CallBlock(_) => return unsupported("a call block"),
            Stmt::AutoEscape(_) => return unsupported("autoescape"),
            _ => return unsupported("another template (block, include, import or extends)"),
        }
        Ok(())
    }

    fn for_loop(&mut self, l: &ForLoop<'_>) -> Written {
        self.put("{% for ");
        self.target(&l.target)?;
        self.put(" in ");
        self.operand(&l.iter)?;
        if let Some(filter) = &l.filter_expr {
            self.put(" if ");
            self.operand(filter)?;
        }
        self.put(if l.recursive { " recursive %}" } else { " %}" });
        self.body(&l.body)?;
        if !l.else_body.is_empty() {
            self.put("{% else %}");
            self.body(&l.else_body)?;
        }
        self.put("{% endfor %}");
        Ok(())
    }

    fn with_block(&mut self, w: &WithBlock<'_>) -> Written {
        self.put("{% with ");
        for (i, (target, value)) in w.assignments.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(target)?;
            self.put(" = ");
            if is_kept(target, value) {
                self.counted(value, "counted_kept")?;
            } else {
                self.operand(value)?;
            }
        }
        self.put(" %}");
        self.body(&w.body)?;
        self.put("{% endwith %}");
        Ok(())
    }

    /// Writes condition and branches of an `if`, after its `{% if `; `elif` stays flat.
    fn branches(&mut self, c: &IfCond<'_>) -> Written {
        self.operand(&c.expr)?;
        self.put(" %}");
        self.body(&c.true_body)?;
        match c.false_body.as_slice() {
            [] => {}
            [Stmt::IfCond(next)] => {
                self.put("{% elif ");
                return self.branches(next);
            }
            other => {
                self.put("{% else %}");
                self.body(other)?;
            }
        }
        self.put("{% endif %}");
        Ok(())
    }

    fn definition(&mut self, m: &Macro<'_>) -> Written {
        write!(self.out, "{{% macro {}(", m.name).expect("writing to a string cannot fail");
        let first_default = m.args.len() - m.defaults.len();
        for (i, arg) in m.args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(arg)?;
            if let Some(default) = i.checked_sub(first_default).and_then(|d| m.defaults.get(d)) {
                self.put("=");
                self.operand(default)?;
            }
        }
        self.put(") %}");
        self.body(&m.body)?;
        self.put("{% endmacro %}");
        Ok(())
    }

    /// Writes the left side of an assignment, a loop's variables, or a macro's argument.
    fn target(&mut self, target: &Expr<'_>) -> Written {
        match target {
            Expr::Var(v) => self.put(v.id),
            Expr::GetAttr(a) => {
                self.target(&a.expr)?;
                self.put(".");
                self.put(a.name);
            }
            Expr::Tuple(t) => return self.targets(&t.items),
            Expr::List(l) => return self.targets(&l.items),
            _ => return unsupported("an unusual assignment"),
        }
        Ok(())
    }

    fn targets(&mut self, targets: &[Expr<'_>]) -> Written {
        self.put("(");
        for target in targets {
            self.target(target)?;
            self.put(", ");
        }
        self.put(")");
        Ok(())
    }

    /// Writes an expression so that it can be combined with any other.
    fn operand(&mut self, expr: &Expr<'_>) -> Written {
        let is_closed = match expr {
            Expr::Var(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => true,
            Expr::Const(c) => c.value.kind() != ValueKind::Number,
            Expr::Call(_) | Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) => true,
            _ => false,
        };
        if is_closed {
            return self.expression(expr);
        }
        self.put("(");
        self.expression(expr)?;
        self.put(")");
        Ok(())
    }

    fn expression(&mut self, expr: &Expr<'_>) -> Written {
        match expr {
            Expr::Var(v) => self.put(v.id),
            Expr::Const(c) => self.constant(&c.value)?,
            Expr::Slice(s) => self.slice(s)?,
            Expr::UnaryOp(u) => {
                self.put(match u.op {
                    UnaryOpKind::Not => "not ",
                    UnaryOpKind::Neg => "-",
                });
                self.operand(&u.expr)?;
            }
            Expr::BinOp(b) => self.operation(b)?,
            Expr::Compare(c) => self.comparisons(c)?,
            Expr::IfExpr(i) => {
                self.operand(&i.true_expr)?;
                self.put(" if ");
                self.operand(&i.test_expr)?;
                if let Some(other) = &i.false_expr {
                    self.put(" else ");
                    self.operand(other)?;
                }
            }
            Expr::Filter(f) => self.filter(f)?,
            Expr::Test(t) => {
                self.operand(&t.expr)?;
                write!(self.out, " is {}", t.name).expect("writing to a string cannot fail");
                if !t.args.is_empty() {
                    self.arguments(&t.args, None)?;
                }
            }
            Expr::GetAttr(a) => {
                self.operand(&a.expr)?;
                self.put(".");
                self.put(a.name);
            }
            Expr::GetItem(i) => {
                self.operand(&i.expr)?;
                self.put("[");
                if is_small(&i.subscript_expr) {
                    self.expression(&i.subscript_expr)?;
                } else {
                    self.counted(&i.subscript_expr, "counted_read")?;
                }
                self.put("]");
            }
            Expr::Call(c) => {
                self.operand(&c.expr)?;
                self.arguments(&c.args, of_call(&c.expr))?;
            }
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) if is_constant(expr) => self.literal(expr)?,
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => {
                self.put("(");
                self.literal(expr)?;
                self.put("|counted_made)");
            }
        }
        Ok(())
    }

    fn filter(&mut self, f: &Filter<'_>) -> Written {
        let Some(base) = &f.expr else { return unsupported("a filter without a value") };
        self.chain_start(base)?;
        write!(self.out, "|counted_input|{}", f.name).expect("writing to a string cannot fail");
        self.arguments(&f.args, of_filter(f.name))?;
        if !PLAIN_RESULTS.split(' ').any(|name| name == f.name) {
            self.put("|counted_made");
        }
        Ok(())
    }

    fn comparisons(&mut self, c: &Compare<'_>) -> Written {
        if let [step] = c.ops.as_slice() {
            return self.compared(&c.expr, comparison(step.op), &step.expr);
        }
        self.read(&c.expr, "counted_read")?;
        for step in &c.ops {
            self.put(comparison(step.op));
            self.read(&step.expr, "counted_read")?;
        }
        Ok(())
    }

    /// Writes a literal container that is not yet counted as a whole, or a value inside one.
    fn literal(&mut self, expr: &Expr<'_>) -> Written {
        match expr {
            Expr::List(l) => self.items("[", &l.items, "]"),
            Expr::Tuple(t) => self.items("(", &t.items, ")"),
            Expr::Map(m) => {
                self.put("{");
                for (key, value) in m.keys.iter().zip(&m.values) {
                    self.read(key, "counted_read")?;
                    self.put(": ");
                    self.literal(value)?;
                    self.put(", ");
                }
                self.put("}");
                Ok(())
            }
            other => self.operand(other),
        }
    }

    /// Writes an operand that is walked through in one step; it is counted unless it is small.
    fn read(&mut self, expr: &Expr<'_>, filter: &str) -> Written {
        if is_small(expr) { self.operand(expr) } else { self.counted(expr, filter) }
    }

    /// Writes an operand that first goes through a filter.
    fn counted(&mut self, expr: &Expr<'_>, filter: &str) -> Written {
        self.put("(");
        self.chain_start(expr)?;
        write!(self.out, "|{filter})").expect("writing to a string cannot fail");
        Ok(())
    }

    /// Writes a comparison. If one side is small, it limits the cost of comparing.
    fn compared(&mut self, left: &Expr<'_>, sign: &str, right: &Expr<'_>) -> Written {
        let is_in = matches!(sign, " in " | " not in ");
        let is_free = if is_in { is_small_list(right) } else { is_small(left) || is_small(right) };
        if is_free {
            self.operand(left)?;
            self.put(sign);
            return self.operand(right);
        }
        self.read(left, "counted_read")?;
        self.put(sign);
        self.read(right, if is_in { "counted_in" } else { "counted_read" })
    }

    /// Writes a value that filters follow; chains of filters stay flat, however long.
    fn chain_start(&mut self, base: &Expr<'_>) -> Written {
        let is_chain = match base {
            Expr::Filter(_) => true,
            Expr::BinOp(b) => growing(b.op).is_some(),
            _ => false,
        };
        if is_chain { self.expression(base) } else { self.operand(base) }
    }

    fn operation(&mut self, b: &BinOp<'_>) -> Written {
        if let Some(filter) = growing(b.op) {
            self.chain_start(&b.left)?;
            write!(self.out, "|{filter}(").expect("writing to a string cannot fail");
            self.operand(&b.right)?;
            self.put(")");
            return Ok(());
        }
        let sign = match b.op {
            BinOpKind::ScAnd => " and ",
            BinOpKind::ScOr => " or ",
            BinOpKind::Sub => " - ",
            BinOpKind::Div => " / ",
            BinOpKind::FloorDiv => " // ",
            BinOpKind::Rem => " % ",
            BinOpKind::Pow => " ** ",
            BinOpKind::Eq => " == ",
            BinOpKind::Ne => " != ",
            BinOpKind::Lt => " < ",
            BinOpKind::Lte => " <= ",
            BinOpKind::Gt => " > ",
            BinOpKind::Gte => " >= ",
            BinOpKind::In => " in ",
            BinOpKind::Add | BinOpKind::Mul | BinOpKind::Concat => unreachable!("counted above"),
        };
        if is_comparison(b.op) {
            return self.compared(&b.left, sign, &b.right);
        }
        // Long chains of one logical operator also stay flat.
        let same_op = |left: &Expr<'_>| match (left, b.op) {
            (Expr::BinOp(l), BinOpKind::ScAnd) => matches!(l.op, BinOpKind::ScAnd),
            (Expr::BinOp(l), BinOpKind::ScOr) => matches!(l.op, BinOpKind::ScOr),
            _ => false,
        };
        if same_op(&b.left) {
            self.expression(&b.left)?
        } else {
            self.operand(&b.left)?
        }
        self.put(sign);
        self.operand(&b.right)
    }

    fn slice(&mut self, s: &Slice<'_>) -> Written {
        self.put("(");
        self.chain_start(&s.expr)?;
        self.put("|counted_input)[");
        for (i, part) in [&s.start, &s.stop, &s.step].into_iter().enumerate() {
            // Without a step there is no second colon: `[a:b]`.
            if i == 1 || (i == 2 && part.is_some()) {
                self.put(":");
            }
            if let Some(part) = part {
                self.operand(part)?;
            }
        }
        self.put("]");
        Ok(())
    }

    fn items(&mut self, open: &str, items: &[Expr<'_>], close: &str) -> Written {
        self.put(open);
        for item in items {
            self.literal(item)?;
            self.put(", ");
        }
        self.put(close);
        Ok(())
    }

    /// Writes arguments; each goes through `filter`, if there is one and the argument is not small.
    fn arguments(&mut self, args: &[CallArg<'_>], filter: Option<&str>) -> Written {
        self.put("(");
        for (i, arg) in args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            match arg {
                CallArg::Pos(value) => self.argument(value, filter)?,
                CallArg::Kwarg(name, value) => {
                    self.put(name);
                    self.put("=");
                    self.argument(value, filter)?;
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return unsupported("a splat argument"),
            }
        }
        self.put(")");
        Ok(())
    }

    fn argument(&mut self, value: &Expr<'_>, filter: Option<&str>) -> Written {
        match filter {
            Some(filter) => self.read(value, filter),
            None => self.operand(value),
        }
    }

    fn constant(&mut self, value: &Value) -> Written {
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::None => self.put("none"),
            ValueKind::Number => {
                let number = value.to_string();
                if !number.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e')) {
                    return unsupported("a number that is not finite");
                }
                self.put(&number);
            }
            _ => return unsupported("an unusual literal"),
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Returns the counting filter that replaces an operator that can make a value grow.
fn growing(op: BinOpKind) -> Option<&'static str> {
    match op {
        BinOpKind::Add => Some("counted_add"),
        BinOpKind::Mul => Some("counted_mul"),
        BinOpKind::Concat => Some("counted_concat"),
        _ => None,
    }
}

fn is_comparison(op: BinOpKind) -> bool {
    use BinOpKind::{Eq, Gt, Gte, In, Lt, Lte, Ne};

    matches!(op, Eq | Ne | Lt | Lte | Gt | Gte | In)
}

/// Whether a value is always a short text, a number or the like, whatever the template's input.
fn is_small(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(c) => c.value.as_str().is_none_or(|text| text.len() <= SMALL_BYTES),
        Expr::UnaryOp(_) | Expr::Compare(_) | Expr::Test(_) => true,
        Expr::BinOp(b) => growing(b.op).is_none() && !matches!(b.op, BinOpKind::ScAnd | BinOpKind::ScOr),
        Expr::Filter(f) => matches!(f.name, "length" | "count"),
        _ => false,
    }
}

fn is_small_list(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::List(l) => l.items.iter().all(is_small),
        Expr::Tuple(t) => t.items.iter().all(is_small),
        _ => false,
    }
}

/// Whether a literal holds nothing but literals, so that the source limits it.
fn is_constant(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::UnaryOp(u) => is_constant(&u.expr),
        Expr::List(l) => l.items.iter().all(is_constant),
        Expr::Tuple(t) => t.items.iter().all(is_constant),
        Expr::Map(m) => m.keys.iter().chain(&m.values).all(is_constant),
        _ => false,
    }
}

/// Whether an assignment stores a value in a namespace and the value may be a namespace itself.
fn is_kept(target: &Expr<'_>, value: &Expr<'_>) -> bool {
    let is_new = match value {
        Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => true,
        Expr::BinOp(b) => growing(b.op).is_some(),
        _ => false,
    };
    !matches!(target, Expr::Var(_)) && !is_new && !is_small(value)
}

/// Returns the filter for the arguments of a filter.
fn of_filter(name: &str) -> Option<&'static str> {
    Some(if EACH_ITEM.contains(&name) { "counted_each" } else { "counted_read" })
}

/// Returns the filter for the arguments of a call; those of `loop.changed` are compared.
fn of_call(called: &Expr<'_>) -> Option<&'static str> {
    matches!(called, Expr::GetAttr(a) if a.name == "changed").then_some("counted_read")
}

fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => " == ",
        CompareOpKind::Ne => " != ",
        CompareOpKind::Lt => " < ",
        CompareOpKind::Lte => " <= ",
        CompareOpKind::Gt => " > ",
        CompareOpKind::Gte => " >= ",
        CompareOpKind::In => " in ",
        CompareOpKind::NotIn => " not in ",
    }
}
