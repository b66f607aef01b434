//! Builds a transaction of nftables: what is removed, and what is added in its place.

use nftables::expr::Expression;
use nftables::schema::{
    Chain, Element, NfCmd, NfListObject, NfObject, Nftables, Rule, Set, SetType, SetTypeValue,
    Table as NftTable,
};
use nftables::stmt::Statement;
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use super::super::{Family, Table};

/// The place of a base chain, and its policy for packets that reach its end.
#[derive(Clone, Copy)]
pub(super) struct ChainHook {
    pub(super) hook: NfHook,
    /// Lower priorities come first (nft(8), "priority").
    pub(super) priority: i32,
    pub(super) policy: NfChainPolicy,
}

/// The commands of one transaction, in order.
#[derive(Default)]
pub(super) struct Batch {
    commands: Vec<NfObject<'static>>,
}

impl Batch {
    pub(super) fn finish(self) -> Nftables<'static> {
        Nftables { objects: self.commands.into() }
    }

    /// Removes a table whether or not it exists, by adding it first. `destroy` does the same, but nft has it
    /// only since 1.0.7.
    pub(super) fn clear(&mut self, table: &Table) {
        self.table(table);
        self.command(NfCmd::Delete(NfListObject::Table(nft_table(table))));
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.add(NfListObject::Table(nft_table(table)));
    }

    /// Adds a base chain, which packets enter from a hook.
    pub(super) fn base_chain(&mut self, table: &Table, name: &'static str, place: ChainHook) {
        self.add(NfListObject::Chain(Chain {
            _type: Some(NfChainType::Filter),
            hook: Some(place.hook),
            prio: Some(place.priority),
            policy: Some(place.policy),
            ..chain(table, name)
        }));
    }

    /// Adds a chain that other chains jump to.
    pub(super) fn chain(&mut self, table: &Table, name: &'static str) {
        self.add(NfListObject::Chain(chain(table, name)));
    }

    pub(super) fn rule(
        &mut self,
        table: &Table,
        chain: &'static str,
        comment: &'static str,
        statements: impl Into<Vec<Statement<'static>>>,
    ) {
        self.add(NfListObject::Rule(Rule {
            family: family(table),
            table: table.name.clone().into(),
            chain: chain.into(),
            expr: statements.into().into(),
            comment: Some(comment.into()),
            ..Rule::default()
        }));
    }

    /// Adds an empty set of concatenations of these fields.
    pub(super) fn set(&mut self, table: &Table, name: &'static str, fields: &'static [SetType]) {
        self.add(NfListObject::Set(Box::new(set(table, name, fields))));
    }

    /// Adds these elements to a set, if there are any.
    pub(super) fn elements(&mut self, table: &Table, name: &'static str, elements: Vec<Expression<'static>>) {
        if !elements.is_empty() {
            self.add(NfListObject::Element(Element {
                family: family(table),
                table: table.name.clone().into(),
                name: name.into(),
                elem: elements.into(),
            }));
        }
    }

    fn add(&mut self, object: NfListObject<'static>) {
        self.command(NfCmd::Add(object));
    }

    fn command(&mut self, command: NfCmd<'static>) {
        self.commands.push(NfObject::CmdObject(command));
    }
}

fn family(table: &Table) -> NfFamily {
    match table.family {
        Family::Ip => NfFamily::IP,
        Family::Ip6 => NfFamily::IP6,
        Family::Inet => NfFamily::INet,
    }
}

fn nft_table(table: &Table) -> NftTable<'static> {
    NftTable { family: family(table), name: table.name.clone().into(), handle: None }
}

fn chain(table: &Table, name: &'static str) -> Chain<'static> {
    Chain { family: family(table), table: table.name.clone().into(), name: name.into(), ..Chain::default() }
}

fn set(table: &Table, name: &'static str, fields: &'static [SetType]) -> Set<'static> {
    Set {
        family: family(table),
        table: table.name.clone().into(),
        name: name.into(),
        set_type: SetTypeValue::Concatenated(fields.into()),
        ..Set::default()
    }
}
