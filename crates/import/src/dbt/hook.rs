//! Hooks of nodes. The manifest has them as templates, which can name the relation of the node.

use super::manifest::{Hook, Node};

/// Hooks of a node, in the order of their execution.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// Before and after the transaction that builds the node.
    pub(super) outside: [Vec<String>; 2],
    /// Within it.
    pub(super) inside: [Vec<String>; 2],
}

impl Hooks {
    /// Renders the hooks of a node.
    ///
    /// # Errors
    /// Returns the reason if a hook contains an expression other than `this`.
    pub(super) fn of(node: &Node) -> Result<Self, String> {
        let mut hooks = Self::default();
        for (n, list) in [&node.settings.pre_hook, &node.settings.post_hook].into_iter().enumerate()
        {
            for hook in list {
                let sql = render(hook, node)?;
                let sql = sql.trim().trim_end_matches(';');
                if !sql.is_empty() {
                    let place =
                        if hook.transaction { &mut hooks.inside } else { &mut hooks.outside };
                    place[n].push(format!("{sql};"));
                }
            }
        }
        Ok(hooks)
    }
}

/// Replaces `{{ this }}` and its parts.
fn render(hook: &Hook, node: &Node) -> Result<String, String> {
    let mut rendered = String::new();
    let mut rest = hook.sql.as_str();
    while let Some(at) = rest.find("{{") {
        rendered.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let Some(end) = inner.find("}}") else { break };
        rendered.push_str(&value(inner[..end].trim().trim_matches('-').trim(), node)?);
        rest = &inner[end + 2..];
    }
    if ["{{", "{%", "{#"].iter().any(|mark| rest.contains(mark) || rendered.contains(mark)) {
        return Err(format!("a hook contains a template that only dbt can render: {}", hook.sql));
    }
    rendered.push_str(rest);
    Ok(rendered)
}

fn value(expression: &str, node: &Node) -> Result<String, String> {
    match expression {
        "this" => Ok(node.relation_name.clone().unwrap_or_default()),
        "this.schema" | "model.schema" => Ok(node.schema.clone()),
        "this.database" | "model.database" => Ok(node.database.clone().unwrap_or_default()),
        "this.identifier" | "this.name" | "this.table" | "model.alias" => Ok(node.alias.clone()),
        other => Err(format!("a hook contains the expression {other}, which only dbt can render")),
    }
}
