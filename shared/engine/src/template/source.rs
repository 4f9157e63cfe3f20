//! A template's source, made ready for the parser and checked before it runs.
//!
//! The parser walks expressions recursively; limiting tokens limits that. The limits are ten times those of
//! any real template. The tag `generation`, by which Hugging Face marks what a model wrote, only opens a
//! scope here. Names that Jinja2 has and this language lacks are found here, not in the tenth turn.

use minijinja::machinery::ast::{Call, CallArg, Expr, Filter, Macro, Stmt};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::{TemplateError, filters, functions, methods, predicates};

/// The most tokens of one `{{ }}` or `{% %}`; limits the depth of an expression.
const TAG_TOKENS_MAX: usize = 2_000;
/// The most `elif` branches; each is one level deeper in the syntax tree.
const ELIFS_MAX: usize = 200;
/// The tag that marks what a model wrote, and the tags that stand for it here.
const GENERATION: [(&str, &str); 2] = [("generation", "with"), ("endgeneration", "endwith")];

/// Returns Hugging Face's settings: a newline after a block tag and the white space before it are dropped.
pub(super) fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("the delimiters are the usual ones")
}

/// Returns the source as the parser reads it.
///
/// # Errors
/// If tokens are malformed or a limit is exceeded.
pub(super) fn prepared(source: &str) -> Result<String, TemplateError> {
    // Jinja2 reads every line break as one character.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut in_tag = 0;
    let mut elifs = 0;
    for token in tokenize(&source, false, syntax()) {
        let (token, span) = token.map_err(|err| TemplateError::Parse(Box::new(err)))?;
        in_tag = match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => 0,
            _ => in_tag + 1,
        };
        elifs += usize::from(matches!(token, Token::Ident("elif")));
        if in_tag > TAG_TOKENS_MAX {
            return unsupported("an expression of thousands of tokens");
        }
        if elifs > ELIFS_MAX {
            return unsupported("hundreds of elif branches");
        }
        let start = span.start_offset as usize;
        let (before, after) = source.split_at(start);
        let change = match token {
            // The parser drops a line break behind `{% raw %}`, and Jinja2 does not.
            Token::TemplateData(_) if after.starts_with('\n') && is_raw(before) => Some(("\n", 0)),
            Token::Ident(name) if in_tag == 1 => GENERATION
                .iter()
                .find(|(tag, _)| *tag == name)
                .map(|(tag, stands_for)| (*stands_for, tag.len())),
            _ => None,
        };
        if let Some((text, replaced)) = change {
            out.push_str(&source[copied..start]);
            out.push_str(text);
            copied = start + replaced;
        }
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

/// Whether a source ends with the tag that begins raw text.
fn is_raw(source: &str) -> bool {
    let tag = source.strip_suffix("%}").and_then(|tag| tag.trim_end().strip_suffix("raw"));
    tag.is_some_and(|tag| tag.trim_end().trim_end_matches(['-', '+']).ends_with("{%"))
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, TemplateError> {
    Err(TemplateError::Unsupported { what: what.into() })
}

/// Refuses a parsed template that uses what this language lacks.
///
/// # Errors
/// [`TemplateError::Unsupported`], with the name.
pub(super) fn check(template: &Stmt<'_>) -> Result<(), TemplateError> {
    statement(template, false)
}

type Checked = Result<(), TemplateError>;

/// Checks statements. Those of a branch may use names that Jinja2 lacks as well: it finds them if the branch
/// runs.
fn body(statements: &[Stmt<'_>], in_branch: bool) -> Checked {
    statements.iter().try_for_each(|inner| statement(inner, in_branch))
}

fn statement(statement: &Stmt<'_>, in_branch: bool) -> Checked {
    match statement {
        Stmt::Template(whole) => body(&whole.children, in_branch),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
        Stmt::EmitExpr(emit) => expression(&emit.expr, in_branch),
        Stmt::ForLoop(statement) => {
            expression(&statement.iter, in_branch)?;
            optional(statement.filter_expr.as_ref(), in_branch)?;
            body(&statement.body, in_branch)?;
            body(&statement.else_body, in_branch)
        }
        Stmt::IfCond(condition) => {
            expression(&condition.expr, in_branch)?;
            body(&condition.true_body, true)?;
            body(&condition.false_body, true)
        }
        Stmt::WithBlock(with) => {
            with.assignments.iter().try_for_each(|(_, value)| expression(value, in_branch))?;
            body(&with.body, in_branch)
        }
        Stmt::Set(set) => expression(&set.expr, in_branch),
        Stmt::SetBlock(set) => {
            optional(set.filter.as_ref(), in_branch)?;
            body(&set.body, in_branch)
        }
        Stmt::FilterBlock(block) => {
            expression(&block.filter, in_branch)?;
            body(&block.body, in_branch)
        }
        Stmt::Macro(definition) => macro_of(definition, in_branch),
        Stmt::CallBlock(block) => {
            call(&block.call, in_branch)?;
            macro_of(&block.macro_decl, in_branch)
        }
        Stmt::Do(statement) => call(&statement.call, in_branch),
        Stmt::AutoEscape(_) => unsupported("autoescape"),
        _ => unsupported("another template (block, include, import or extends)"),
    }
}

fn macro_of(definition: &Macro<'_>, in_branch: bool) -> Checked {
    definition.defaults.iter().try_for_each(|value| expression(value, in_branch))?;
    body(&definition.body, in_branch)
}

fn optional(expr: Option<&Expr<'_>>, in_branch: bool) -> Checked {
    expr.map_or(Ok(()), |expr| expression(expr, in_branch))
}

fn expressions(list: &[Expr<'_>], in_branch: bool) -> Checked {
    list.iter().try_for_each(|expr| expression(expr, in_branch))
}

fn expression(expr: &Expr<'_>, in_branch: bool) -> Checked {
    match expr {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(slice) => {
            expression(&slice.expr, in_branch)?;
            [&slice.start, &slice.stop, &slice.step]
                .into_iter()
                .try_for_each(|bound| optional(bound.as_ref(), in_branch))
        }
        Expr::UnaryOp(unary) => expression(&unary.expr, in_branch),
        Expr::BinOp(binary) => {
            expression(&binary.left, in_branch)?;
            expression(&binary.right, in_branch)
        }
        Expr::Compare(chain) => {
            expression(&chain.expr, in_branch)?;
            chain.ops.iter().try_for_each(|step| expression(&step.expr, in_branch))
        }
        Expr::IfExpr(choice) => {
            expression(&choice.test_expr, true)?;
            expression(&choice.true_expr, true)?;
            optional(choice.false_expr.as_ref(), true)
        }
        Expr::Filter(of) => filter(of, in_branch),
        Expr::Test(test) => {
            if !predicates::is_known(test.name) && !in_branch {
                return unsupported(format!("the unknown test `{}`", test.name));
            }
            expression(&test.expr, in_branch)?;
            arguments(&test.args, in_branch)
        }
        Expr::GetAttr(attribute) => expression(&attribute.expr, in_branch),
        Expr::GetItem(item) => {
            expression(&item.expr, in_branch)?;
            expression(&item.subscript_expr, in_branch)
        }
        Expr::Call(of) => call(of, in_branch),
        Expr::List(list) => expressions(&list.items, in_branch),
        Expr::Tuple(tuple) => expressions(&tuple.items, in_branch),
        Expr::Map(map) => {
            expressions(&map.keys, in_branch)?;
            expressions(&map.values, in_branch)
        }
    }
}

fn filter(filter: &Filter<'_>, in_branch: bool) -> Checked {
    if filters::is_missing(filter.name) {
        return unsupported(format!("the filter `{}`", filter.name));
    }
    if !filters::is_known(filter.name) && !in_branch {
        return unsupported(format!("the unknown filter `{}`", filter.name));
    }
    optional(filter.expr.as_ref(), in_branch)?;
    arguments(&filter.args, in_branch)
}

fn call(call: &Call<'_>, in_branch: bool) -> Checked {
    match &call.expr {
        Expr::Var(name) if functions::is_missing(name.id) => {
            return unsupported(format!("the function `{}`", name.id));
        }
        Expr::GetAttr(attribute) if methods::is_missing(attribute.name) => {
            return unsupported(format!("the method `{}`", attribute.name));
        }
        other => expression(other, in_branch)?,
    }
    arguments(&call.args, in_branch)
}

fn arguments(args: &[CallArg<'_>], in_branch: bool) -> Checked {
    args.iter().try_for_each(|arg| match arg {
        CallArg::Pos(value) | CallArg::Kwarg(_, value) => expression(value, in_branch),
        CallArg::PosSplat(value) | CallArg::KwargSplat(value) => expression(value, in_branch),
    })
}
