-- The table, and what it holds at 0/10.
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"');
CREATE TYPE pair AS (a int4, b text);
CREATE DOMAIN price AS numeric(10,2);
CREATE TABLE every_type (
    id int4 PRIMARY KEY,
    boolean bool, small int2, plain int4, large int8, object oid,
    single float4, double float8,
    exact numeric(20,4), unbounded numeric, negative_scale numeric(5,-2), amount price, cash money,
    day date, clock time, zoned_clock timetz, moment timestamp, zoned timestamptz, span interval,
    padded char(5), short varchar(20), long text, bytes bytea,
    identity uuid, feeling mood, host inet, network cidr, mac macaddr,
    verbatim json, parsed jsonb,
    integers int4[], grid int8[], texts text[], numerics numeric(6,2)[], moments timestamptz[], blobs bytea[], documents jsonb[],
    span_of_numbers int4range, bits bit(3), spot point, boxes box[], words tsvector, couple pair, vector int2vector
);
INSERT INTO every_type VALUES
(1, true, -32768, -2147483648, -9223372036854775808, 0,
 1.5, 0.1,
 -1234567890123456.7890, 123456789012345678901234567890.50, 12300, 19.90, 1234.5,
 '2024-02-29', '00:00:00', '01:02:03.5+02', '2024-02-29 10:00:00.1', '2024-02-29 10:00:00.1+02', '1 year 2 days 03:04:05.678',
 'ab', 'short', E'tab\t, quote ", backslash \\, slash /, \u2028, 😀', '\xdeadbeef00',
 '123e4567-e89b-12d3-a456-426614174000', 'it''s "ok"', '192.168.0.1', '10.0.0.0/8', '08:00:2b:01:02:03',
 '{"b": 1,  "a":[1.0 , null]}', '{"b": 1,  "a":[1.0 , null]}',
 '{1,NULL,-3}', '{{1,9007199254740993},{3,4}}', '{"a\"b",NULL,"NULL",""}', '{1.5,NULL}', '{"2024-02-29 10:00:00.1+00",NULL}', '{"\\x00ff",NULL}', ARRAY['{"a":1}', '2']::jsonb[],
 '[1,5)', B'101', '(1.5,2)', '{(1,1),(0,0);(2,2),(1,1)}', 'fat:2 cat:1', '(1,"x y")', '1 2 3'),
(2, false, 32767, 2147483647, 9223372036854775807, 4294967295,
 1e+20, 1e+15,
 9999999999999999.9999, -0.0001, -99900, -0.01, -0.01,
 '0001-01-01', '23:59:59.999999', '23:59:59-12:30', '0001-01-01 00:00:00', '1969-12-31 23:59:59.999999+00', '-1 days',
 '', '', '', '\x',
 '00000000-0000-0000-0000-000000000000', 'sad', '::1', '::/0', 'ff:ff:ff:ff:ff:ff',
 '[]', 'null',
 '{}', '{}', '{}', '{}', '{}', '{}', '{}',
 'empty', B'000', '(-0,1e-05)', '{}', '', '(,)', ''),
(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
