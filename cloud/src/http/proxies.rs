//! Finds the client's address behind trusted proxies.
//!
//! Never: trusts a header from anyone else. Always: returns the address nearest to the service that is not a
//! proxy's.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks whose `X-Forwarded-For` is trusted; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies(Arc<[IpNet]>);

impl Proxies {
    /// Trusts these networks.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Proxies {
        Proxies(networks.into())
    }

    fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the address that sent a request which came from `peer`. Each proxy appends the address of its
    /// client to the header. So the header is read from its end, as far as trusted proxies have written it.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let values = headers.get_all(&X_FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let said: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        for said in said.into_iter().rev() {
            if !self.has(client) {
                break;
            }
            let Some(address) = address(said) else { break };
            client = address;
        }
        client
    }
}

/// Reads an address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let plain = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let parsed = plain.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_proxies_are_believed() {
        let proxies = Proxies::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        let check = |peer: &str, said: &[&str], want: &str| {
            let mut headers = HeaderMap::new();
            for said in said {
                headers.append(X_FORWARDED_FOR, HeaderValue::from_str(said).unwrap());
            }
            let client = proxies.client(peer.parse().unwrap(), &headers);
            assert_eq!(client, want.parse::<IpAddr>().unwrap(), "{peer} {said:?}");
        };
        check("6.6.6.6", &["1.1.1.1"], "6.6.6.6");
        check("10.0.0.1", &[], "10.0.0.1");
        check("10.0.0.1", &["1.1.1.1"], "1.1.1.1");
        check("::ffff:10.0.0.1", &["1.1.1.1"], "1.1.1.1");
        // What the client itself wrote comes first in the header, and is not read.
        check("10.0.0.1", &["9.9.9.9, 1.1.1.1"], "1.1.1.1");
        check("10.0.0.1", &["9.9.9.9", "1.1.1.1, 10.2.2.2"], "1.1.1.1");
        check("10.0.0.1", &["9.9.9.9, nonsense, 10.2.2.2"], "10.2.2.2");
        check("fd00::1", &["[2001:db8::1]:443"], "2001:db8::1");
        check("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1");
        check("10.0.0.1", &["1.1.1.1:5000"], "1.1.1.1");
        check("10.0.0.1", &["1.1.1.1,"], "10.0.0.1");
        assert_eq!(
            Proxies::default().client("10.0.0.1".parse().unwrap(), &HeaderMap::new()).to_string(),
            "10.0.0.1"
        );
    }
}
