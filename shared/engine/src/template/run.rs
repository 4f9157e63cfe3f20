//! Runs a parsed template: statements, scopes, expressions and calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use minijinja::machinery::ast::{
    BinOp, BinOpKind, Call, CallArg, CallBlock, Expr, ForLoop, Macro, Slice, Stmt, UnaryOpKind, WithBlock,
};

use super::args::Args;
use super::budget::{Budget, Outcome, Stop, failed};
use super::text::Text;
use super::value::{Loop, SeqKind, Value};
use super::{filters, functions, methods, ops, predicates, write};

/// The most nested macro calls, loops and blocks.
const NESTED_MAX: usize = 200;

/// Variables of a block, and the block around it.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    names: RefCell<HashMap<&'a str, Value>>,
    around: Option<Rc<Scope<'a>>>,
}

impl<'a> Scope<'a> {
    fn within(around: &Rc<Scope<'a>>) -> Rc<Scope<'a>> {
        Rc::new(Scope { names: RefCell::default(), around: Some(around.clone()) })
    }

    fn find(&self, name: &str) -> Option<Value> {
        let found = self.names.borrow().get(name).cloned();
        found.or_else(|| self.around.as_ref()?.find(name))
    }

    /// Sets a variable of this scope.
    pub(super) fn set(&self, name: &'a str, value: Value) {
        self.names.borrow_mut().insert(name, value);
    }
}

/// A macro, and the scope that it was defined in.
struct Closure<'a> {
    definition: &'a Macro<'a>,
    scope: Weak<Scope<'a>>,
}

/// How a block ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// A template that runs.
pub(super) struct Run<'a> {
    pub(super) budget: &'a Budget,
    root: Rc<Scope<'a>>,
    macros: Vec<Closure<'a>>,
    /// Statements of loops that may call themselves.
    loops: Vec<&'a ForLoop<'a>>,
    nested: usize,
}

impl<'a> Run<'a> {
    /// Returns a template's run, with these variables.
    pub(super) fn new(budget: &'a Budget, variables: Vec<(&'a str, Value)>) -> Run<'a> {
        let root: Rc<Scope<'a>> = Rc::default();
        variables.into_iter().for_each(|(name, value)| root.set(name, value));
        Run { budget, root, macros: Vec::new(), loops: Vec::new(), nested: 0 }
    }

    /// Runs the template to its end.
    ///
    /// # Errors
    /// If the template refuses the conversation, fails, or uses up a limit.
    pub(super) fn template(&mut self, template: &'a Stmt<'a>) -> Outcome<Text> {
        let mut out = Text::default();
        let root = self.root.clone();
        match template {
            Stmt::Template(whole) => self.block(&whole.children, &root, &mut out)?,
            other => self.statement(other, &root, &mut out)?,
        };
        Ok(out)
    }

    fn nest<T>(&mut self, inner: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.nested == NESTED_MAX {
            return failed("maximum recursion depth exceeded");
        }
        self.nested += 1;
        let outcome = inner(self);
        self.nested -= 1;
        outcome
    }

    fn block(&mut self, body: &'a [Stmt<'a>], scope: &Rc<Scope<'a>>, out: &mut Text) -> Outcome<Flow> {
        for statement in body {
            match self.statement(statement, scope, out)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    /// Runs a block in a scope of its own and returns what it writes.
    fn captured(&mut self, body: &'a [Stmt<'a>], scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let mut out = Text::default();
        let inner = Scope::within(scope);
        self.nest(|run| run.block(body, &inner, &mut out))?;
        Ok(Value::made(out))
    }

    fn statement(&mut self, statement: &'a Stmt<'a>, scope: &Rc<Scope<'a>>, out: &mut Text) -> Outcome<Flow> {
        self.budget.step()?;
        match statement {
            Stmt::Template(inner) => return self.block(&inner.children, scope, out),
            Stmt::EmitRaw(raw) => {
                self.budget.charge(raw.raw.len())?;
                out.push_str(raw.raw);
            }
            Stmt::EmitExpr(emit) => {
                let value = self.expression(&emit.expr, scope)?;
                write::write(&value, out, self.budget)?;
            }
            Stmt::IfCond(condition) => {
                let is_true = self.expression(&condition.expr, scope)?.is_true();
                let body = if is_true { &condition.true_body } else { &condition.false_body };
                return self.nest(|run| run.block(body, scope, out));
            }
            Stmt::ForLoop(statement) => {
                let items = self.expression(&statement.iter, scope)?;
                self.for_loop(statement, &items, 0, scope, out)?;
            }
            Stmt::Set(set) => {
                let value = self.expression(&set.expr, scope)?;
                self.assign(&set.target, value, scope, scope)?;
            }
            Stmt::SetBlock(set) => {
                let text = self.captured(&set.body, scope)?;
                let value = match &set.filter {
                    Some(filter) => self.filtered(filter, text, scope)?,
                    None => text,
                };
                self.assign(&set.target, value, scope, scope)?;
            }
            Stmt::FilterBlock(block) => {
                let text = self.captured(&block.body, scope)?;
                let value = self.filtered(&block.filter, text, scope)?;
                write::write(&value, out, self.budget)?;
            }
            Stmt::WithBlock(with) => return self.with_block(with, scope, out),
            Stmt::Macro(definition) => {
                let value = self.define(definition, scope)?;
                scope.set(definition.name, value);
            }
            Stmt::CallBlock(block) => {
                let value = self.call_block(block, scope)?;
                write::write(&value, out, self.budget)?;
            }
            Stmt::Do(call) => drop(self.call(&call.call, scope)?),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Break(_) => return Ok(Flow::Break),
            _ => return failed("the statement is not supported"),
        }
        Ok(Flow::Next)
    }

    fn with_block(
        &mut self,
        with: &'a WithBlock<'a>,
        scope: &Rc<Scope<'a>>,
        out: &mut Text,
    ) -> Outcome<Flow> {
        let inner = Scope::within(scope);
        for (target, value) in &with.assignments {
            let value = self.expression(value, scope)?;
            self.assign(target, value, &inner, scope)?;
        }
        self.nest(|run| run.block(&with.body, &inner, out))
    }

    /// Sets variables of `scope`, or a field of a namespace that `visible` has.
    fn assign(
        &mut self,
        target: &'a Expr<'a>,
        value: Value,
        scope: &Scope<'a>,
        visible: &Scope<'a>,
    ) -> Outcome<()> {
        let targets = match target {
            Expr::Var(name) => {
                scope.set(name.id, value);
                return Ok(());
            }
            Expr::GetAttr(field) => {
                let Expr::Var(name) = &field.expr else { return failed("cannot assign to this") };
                let Some(Value::Namespace(namespace)) = visible.find(name.id) else {
                    return failed("cannot assign attribute on non-namespace object");
                };
                if value.changes() {
                    return failed("a namespace cannot hold a namespace or a loop");
                }
                let mut fields = namespace.fields.borrow_mut();
                match fields.iter_mut().find(|(known, _)| known == field.name) {
                    Some((_, old)) => *old = value,
                    None => fields.push((field.name.to_owned(), value)),
                }
                return Ok(());
            }
            Expr::Tuple(targets) => &targets.items,
            Expr::List(targets) => &targets.items,
            _ => return failed("cannot assign to this"),
        };
        let items = value.items(self.budget)?;
        if items.items.len() != targets.len() {
            return failed(format!("expected {} values to unpack, got {}", targets.len(), items.items.len()));
        }
        for (target, item) in targets.iter().zip(&items.items) {
            self.assign(target, item.clone(), scope, visible)?;
        }
        Ok(())
    }

    fn for_loop(
        &mut self,
        statement: &'a ForLoop<'a>,
        items: &Value,
        depth: usize,
        scope: &Rc<Scope<'a>>,
        out: &mut Text,
    ) -> Outcome<()> {
        let mut items = items.items(self.budget)?;
        if let Some(filter) = &statement.filter_expr {
            let mut kept = Vec::new();
            for item in &items.items {
                self.budget.step()?;
                let inner = Scope::within(scope);
                self.assign(&statement.target, item.clone(), &inner, scope)?;
                if self.expression(filter, &inner)?.is_true() {
                    kept.push(item.clone());
                }
            }
            items = Value::list(kept, self.budget)?.items(self.budget)?;
        }
        let recursive = statement.recursive.then_some(self.loops.len());
        if recursive.is_some() {
            self.budget.charge(size_of::<usize>())?;
            self.loops.push(statement);
        }
        let last = Rc::default();
        for index in 0..items.items.len() {
            self.budget.step()?;
            let inner = Scope::within(scope);
            let state = Loop { items: items.clone(), index, depth, recursive, last: Rc::clone(&last) };
            inner.set("loop", Value::Loop(Rc::new(state)));
            self.assign(&statement.target, items.items[index].clone(), &inner, scope)?;
            if self.nest(|run| run.block(&statement.body, &inner, out))? == Flow::Break {
                break;
            }
        }
        if items.items.is_empty() {
            let inner = Scope::within(scope);
            self.nest(|run| run.block(&statement.else_body, &inner, out))?;
        }
        Ok(())
    }

    fn define(&mut self, definition: &'a Macro<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        self.budget.charge(size_of::<Closure<'_>>())?;
        self.macros.push(Closure { definition, scope: Rc::downgrade(scope) });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn call_block(&mut self, block: &'a CallBlock<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let caller = self.define(&block.macro_decl, scope)?;
        let callee = self.expression(&block.call.expr, scope)?;
        let mut args = self.arguments(&block.call.args, scope)?;
        args.named.push(("caller".to_owned(), caller));
        self.apply(callee, args, scope)
    }

    fn call_macro(&mut self, number: usize, mut args: Args) -> Outcome<Value> {
        let definition = self.macros[number].definition;
        let scope = self.macros[number].scope.upgrade().unwrap_or_else(|| self.root.clone());
        let inner = Scope::within(&scope);
        let mut extra = args.pos.split_off(args.pos.len().min(definition.args.len()));
        let mut given = args.pos.into_iter();
        let first_default = definition.args.len() - definition.defaults.len();
        for (at, parameter) in definition.args.iter().enumerate() {
            let Expr::Var(name) = parameter else { return failed("a macro's parameter is a name") };
            let named = args.named.iter().position(|(known, _)| known == name.id);
            let value = match (given.next(), named) {
                (Some(_), Some(_)) => return failed(format!("macro got several values for '{}'", name.id)),
                (Some(value), None) => value,
                (None, Some(at)) => args.named.remove(at).1,
                (None, None) => match at.checked_sub(first_default).map(|at| &definition.defaults[at]) {
                    Some(default) => self.expression(default, &inner)?,
                    None => Value::Undefined(format!("parameter '{}' was not provided", name.id).into()),
                },
            };
            inner.set(name.id, value);
        }
        if let Some(at) = args.named.iter().position(|(name, _)| name == "caller") {
            inner.set("caller", args.named.remove(at).1);
        }
        let named = args.named.drain(..).map(|(name, value)| (Value::text(name), value)).collect();
        inner.set("kwargs", Value::map(named, self.budget)?);
        inner.set("varargs", Value::seq(std::mem::take(&mut extra), SeqKind::Tuple, self.budget)?);
        let mut out = Text::default();
        self.nest(|run| run.block(&definition.body, &inner, &mut out))?;
        Ok(Value::made(out))
    }

    /// Returns the value of an expression.
    fn expression(&mut self, expr: &'a Expr<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        self.budget.step()?;
        match expr {
            Expr::Var(name) => Ok(self.variable(name.id, scope)),
            Expr::Const(constant) => self.constant(&constant.value),
            Expr::Slice(slice) => self.slice(slice, scope),
            Expr::UnaryOp(unary) => {
                let value = self.expression(&unary.expr, scope)?;
                match unary.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => ops::negated(&value),
                }
            }
            Expr::BinOp(binary) => self.operation(binary, scope),
            Expr::Compare(chain) => {
                let mut left = self.expression(&chain.expr, scope)?;
                for step in &chain.ops {
                    let right = self.expression(&step.expr, scope)?;
                    if !ops::compare(step.op, &left, &right, self.budget)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::IfExpr(choice) => {
                if self.expression(&choice.test_expr, scope)?.is_true() {
                    return self.expression(&choice.true_expr, scope);
                }
                match &choice.false_expr {
                    Some(other) => self.expression(other, scope),
                    None => Ok(Value::Undefined("the inline if-expression evaluated to false".into())),
                }
            }
            Expr::Filter(_) => self.filtered(expr, Value::None, scope),
            Expr::Test(test) => {
                let value = self.expression(&test.expr, scope)?;
                let args = self.arguments(&test.args, scope)?;
                predicates::apply(test.name, &value, args, self.budget).map(Value::Bool)
            }
            Expr::GetAttr(attribute) => {
                let value = self.expression(&attribute.expr, scope)?;
                ops::attribute(&value, attribute.name, self.budget)
            }
            Expr::GetItem(item) => {
                let value = self.expression(&item.expr, scope)?;
                let key = self.expression(&item.subscript_expr, scope)?;
                ops::item(&value, &key, self.budget)
            }
            Expr::Call(call) => self.call(call, scope),
            Expr::List(list) => Value::list(self.expressions(&list.items, scope)?, self.budget),
            Expr::Tuple(tuple) => {
                Value::seq(self.expressions(&tuple.items, scope)?, SeqKind::Tuple, self.budget)
            }
            Expr::Map(map) => {
                let keys = self.expressions(&map.keys, scope)?;
                let values = self.expressions(&map.values, scope)?;
                Value::map(keys.into_iter().zip(values).collect(), self.budget)
            }
        }
    }

    fn operation(&mut self, binary: &'a BinOp<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let left = self.expression(&binary.left, scope)?;
        match binary.op {
            BinOpKind::ScAnd if !left.is_true() => Ok(left),
            BinOpKind::ScOr if left.is_true() => Ok(left),
            BinOpKind::ScAnd | BinOpKind::ScOr => self.expression(&binary.right, scope),
            op => {
                let right = self.expression(&binary.right, scope)?;
                ops::binary(op, &left, &right, self.budget)
            }
        }
    }

    fn expressions(&mut self, list: &'a [Expr<'a>], scope: &Rc<Scope<'a>>) -> Outcome<Vec<Value>> {
        list.iter().map(|expr| self.expression(expr, scope)).collect()
    }

    fn variable(&self, name: &str, scope: &Scope<'a>) -> Value {
        let found = scope.find(name);
        found.or_else(|| functions::find(name).map(Value::Function)).unwrap_or_else(|| Value::undefined(name))
    }

    fn constant(&self, constant: &minijinja::Value) -> Outcome<Value> {
        use minijinja::value::ValueKind;

        Ok(match constant.kind() {
            ValueKind::String => {
                let text = constant.as_str().unwrap_or_default();
                self.budget.charge(text.len())?;
                Value::text(text)
            }
            ValueKind::Bool => Value::Bool(constant.is_true()),
            ValueKind::Number if constant.is_integer() => match i128::try_from(constant.clone()) {
                Ok(number) => Value::Int(number),
                Err(_) => return failed("an integer has too many digits"),
            },
            ValueKind::Number => Value::Float(f64::try_from(constant.clone()).unwrap_or(f64::NAN)),
            _ => Value::None,
        })
    }

    fn slice(&mut self, slice: &'a Slice<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let value = self.expression(&slice.expr, scope)?;
        let mut bounds = [None, None, None];
        for (bound, given) in bounds.iter_mut().zip([&slice.start, &slice.stop, &slice.step]) {
            *bound = given.as_ref().map(|expr| self.expression(expr, scope)).transpose()?;
        }
        ops::slice(&value, bounds, self.budget)
    }

    /// Returns the result of a chain of filters; the innermost one without a value works on `inner`.
    fn filtered(&mut self, filter: &'a Expr<'a>, inner: Value, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let Expr::Filter(filter) = filter else { return failed("no filter") };
        let value = match &filter.expr {
            None => inner,
            Some(base @ Expr::Filter(_)) => self.filtered(base, inner, scope)?,
            Some(base) => self.expression(base, scope)?,
        };
        let args = self.arguments(&filter.args, scope)?;
        filters::apply(filter.name, &value, args, self.budget)
    }

    fn arguments(&mut self, given: &'a [CallArg<'a>], scope: &Rc<Scope<'a>>) -> Outcome<Args> {
        let mut args = Args::default();
        for arg in given {
            match arg {
                CallArg::Pos(value) => args.pos.push(self.expression(value, scope)?),
                CallArg::Kwarg(name, value) => {
                    args.named.push(((*name).to_owned(), self.expression(value, scope)?));
                }
                CallArg::PosSplat(list) => {
                    let list = self.expression(list, scope)?.items(self.budget)?;
                    args.pos.extend(list.items.iter().cloned());
                }
                CallArg::KwargSplat(map) => {
                    let value = self.expression(map, scope)?;
                    let Value::Map(map) = &value else {
                        return failed("argument after ** must be a mapping");
                    };
                    for (name, value) in map.entries() {
                        let Some(name) = name.as_str() else { return failed("keywords must be strings") };
                        args.named.push((name.to_owned(), value.clone()));
                    }
                }
            }
        }
        self.budget.charge((args.pos.len() + args.named.len()) * size_of::<Value>())?;
        Ok(args)
    }

    fn call(&mut self, call: &'a Call<'a>, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        let callee = self.expression(&call.expr, scope)?;
        let args = self.arguments(&call.args, scope)?;
        self.apply(callee, args, scope)
    }

    fn apply(&mut self, callee: Value, args: Args, scope: &Rc<Scope<'a>>) -> Outcome<Value> {
        match callee {
            Value::Macro(number) => self.call_macro(number, args),
            Value::Method(bound) => methods::call(&bound.0, bound.1, args, self.budget),
            Value::Function(name) => functions::call(name, args, self.budget),
            Value::Loop(state) => {
                let Some(number) = state.recursive else {
                    return failed("the loop must have the 'recursive' marker to be called");
                };
                let args = args.bind("loop", &["items"])?;
                let mut out = Text::default();
                let statement = self.loops[number];
                self.for_loop(statement, args.need(0)?, state.depth + 1, scope, &mut out)?;
                Ok(Value::made(out))
            }
            Value::Joiner(joiner) => {
                let is_first = !joiner.is_used.replace(true);
                Ok(if is_first { Value::text("") } else { joiner.between.clone() })
            }
            Value::Undefined(name) => Err(Stop::Failed(name.to_string())),
            other => failed(format!("{} is not callable", other.type_name())),
        }
    }
}
