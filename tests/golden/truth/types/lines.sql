-- Every row's line, with the casts that docs/archive-format.md names; in key order.
SELECT row_to_json(q)::text FROM (
    SELECT id, boolean, small, plain, large, object::int8 AS object, single, double,
        exact::text AS exact, unbounded::text AS unbounded, negative_scale::text AS negative_scale, amount::text AS amount, cash,
        day, clock, zoned_clock, moment, zoned, span, padded, short, long, bytes,
        identity, feeling, host, network, mac,
        translate(verbatim::text, E'\n\r', '  ')::json AS verbatim, parsed,
        integers, grid, texts, numerics::text[] AS numerics, moments, blobs, documents,
        span_of_numbers, bits, spot, boxes, words, couple::text AS couple, vector::text AS vector
    FROM public.every_type ORDER BY id::text COLLATE "C"
) q
