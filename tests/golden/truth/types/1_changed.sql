-- What it holds at 0/20: the values that double, date or decimal types of other systems lack.
UPDATE every_type SET single = -1.17549435e-38, double = 5e-324, day = '0044-03-15 BC', large = 9007199254740993 WHERE id = 1;
UPDATE every_type SET single = 'NaN', double = '-Infinity', exact = 'NaN', unbounded = 'Infinity', day = 'infinity',
    moment = '-infinity', zoned = '0044-03-15 10:00:00+00 BC' WHERE id = 2;
DELETE FROM every_type WHERE id = 3;
INSERT INTO every_type (id, double, single, zoned, grid) VALUES
(4, '-0', 1e-05, 'infinity', '{{{1},{2}},{{3},{4}}}'),
(5, 9007199254740993, 1234567, '12024-01-01 00:00:00+00', '[2:3]={7,8}');
