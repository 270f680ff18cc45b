//! The pod of Kubernetes in which a process ran, as its environment told it.

use journal::reader::Header;

/// The pod: `NAMESPACE/NAME` if the namespace is known. `None` outside Kubernetes. It is any text, so what shows it makes it
/// printable.
pub fn pod(header: &Header) -> Option<String> {
    let variable = |name: &str| header.variable(name).filter(|value| !value.is_empty());
    if let Some(pod) = variable("VRAMSHIM_POD") {
        return Some(pod.to_owned());
    }
    // The kubelet sets the address of the API server in each container, and the pod's name is the name of its host.
    let in_kubernetes = variable("KUBERNETES_SERVICE_HOST").map(|_| header.host.as_str());
    let name = variable("POD_NAME").or(in_kubernetes)?;
    Some(match variable("POD_NAMESPACE") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    })
}
