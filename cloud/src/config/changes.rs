//! What differs between two configurations, and what of it a running program can take over.

use baton_edge::HttpLimits;

use super::Config;

impl Config {
    /// Lists the options in which `new` differs, and whether each takes effect while the program runs.
    pub fn changes(&self, new: &Config) -> Vec<(&'static str, bool)> {
        let differs = [
            ("queue limits", (self.queue, self.backlog) != (new.queue, new.backlog), true),
            ("--deadline", self.deadline != new.deadline, true),
            ("connection limits", self.http_live() != new.http_live(), true),
            ("--connections", self.edge.http.connections_max != new.edge.http.connections_max, false),
            ("limits of requests", self.edge.api != new.edge.api, false),
            ("--tls-cert or --tls-key", self.edge.tls != new.edge.tls, false),
            ("models, adapters and engines", self.models != new.models, false),
            (
                "--models-memory or --lazy",
                (self.models_memory, self.lazy) != (new.models_memory, new.lazy),
                false,
            ),
            ("options of --upstream", self.upstream != new.upstream, false),
            ("options of --registry", self.registry != new.registry, false),
            ("--listen", self.listen != new.listen, false),
            ("--database", self.database != new.database, false),
            ("--api-key", self.api_key != new.api_key, false),
            ("--slots", self.slots != new.slots, false),
            ("--threads", self.threads != new.threads, false),
            ("--gpu or --vram", (self.gpu, self.vram) != (new.gpu, new.vram), false),
            ("--gpu-offload", self.gpu_offload != new.gpu_offload, false),
            ("--kv-tokens", self.kv_tokens != new.kv_tokens, false),
            ("--kv", self.kv != new.kv, false),
            ("prompt tokens of a pass", self.budget != new.budget, false),
            ("--prefix-cache", self.prefix_cache_percent != new.prefix_cache_percent, false),
            ("--speculate", self.speculation != new.speculation, false),
            ("--repack-mib", self.repack_mib != new.repack_mib, false),
            ("emulation", self.emulation != new.emulation, false),
            ("the console's options", self.admin != new.admin, false),
        ];
        differs.into_iter().filter(|(_, differs, _)| *differs).map(|(name, _, live)| (name, live)).collect()
    }

    /// Returns the limits of new connections, with 0 for `connections_max`, which is read only at start-up.
    pub fn http_live(&self) -> HttpLimits {
        HttpLimits { connections_max: 0, ..self.edge.http }
    }
}
