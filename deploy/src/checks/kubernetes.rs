//! Checks of the objects for Kubernetes: the overlays, the Helm chart, and what both render.

pub(super) mod helm;
pub(super) mod kustomize;
mod manifests;
pub(super) mod objects;
