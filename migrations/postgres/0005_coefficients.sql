-- What clouds, devices and networks usually cost, refitted from telemetry: medians only, no request and no device.
CREATE TABLE coefficients (
    kind           TEXT NOT NULL CHECK (kind IN ('cloud', 'device', 'network')),
    -- The class; empty for the cloud and for all devices or networks together.
    name           TEXT NOT NULL CHECK (length(name) <= 128),
    figure         TEXT NOT NULL CHECK (length(figure) <= 64),
    value          DOUBLE PRECISION NOT NULL CHECK (value >= 0.0),
    samples        BIGINT NOT NULL CHECK (samples >= 0),
    updated_unix_s BIGINT NOT NULL DEFAULT (EXTRACT(EPOCH FROM now())::BIGINT),
    PRIMARY KEY (kind, name, figure)
);
