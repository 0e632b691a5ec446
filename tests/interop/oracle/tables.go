package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// valueTables are schemas of a property x, and values of x: SCHEMA | VALUE | VALUE …. In a value, OLD -> NEW is an update,
// and "-" says that x is absent.
const valueTables = `
// Types.
{"type":"string"} | "a" | 1 | 1.5 | true | null | [] | {} | - | "" | "é\u0000\n" | "<&>\u2028"
{"type":"integer"} | 1 | -1 | 1.0 | 1.5 | 1e3 | 1e100 | 9223372036854775807 | 9223372036854775808 | -9223372036854775808 | -9223372036854775809 | "1" | true | null | [] | {} | -0 | -0.0 | 0.0 | 12345678901234567890123
{"type":"number"} | 1 | -1 | 1.0 | 1.5 | 1e3 | 1e308 | "1" | true | null | 0.1 | 1e-7 | 123456789.123456789 | 9223372036854775808
{"type":"boolean"} | true | false | "true" | 1 | 0 | null | []
{"type":"object"} | {} | {"a":1} | [] | "a" | 1 | null | {"a":null}
{"type":"object","properties":{}} | {} | {"a":1}
{"type":"array","items":{"type":"string"}} | [] | ["a"] | [1] | [null] | ["a",1,null,[],{}] | "a" | {} | null
{"x-kubernetes-int-or-string":true} | 1 | "a" | 1.5 | 1.0 | true | null | [] | {} | 1e3 | 9223372036854775808
{"x-kubernetes-int-or-string":true,"nullable":true} | null | 1
{"x-kubernetes-int-or-string":true,"minimum":2,"maxLength":2,"pattern":"^a"} | 1 | 2 | "a" | "b" | "abc"
{"x-kubernetes-preserve-unknown-fields":true} | 1 | "a" | null | [null] | {"a":null} | {} | true | [[{}]]
// Numbers.
{"type":"integer","format":"int32"} | 2147483647 | 2147483648 | -2147483648 | -2147483649 | 1.5 | "1"
{"type":"integer","format":"int64"} | 9223372036854775807 | 9223372036854775808 | 1e18 | 1e19
{"type":"integer","format":"uint8"} | 256
{"type":"number","format":"float"} | 3.4e38 | 3.5e38 | -3.5e38 | 1 | 1e-50
{"type":"number","format":"double"} | 1e308 | 1 | 1.5
{"type":"number","format":"int32"} | 1.5 | 2147483648
{"type":"integer","minimum":1,"maximum":3} | 0 | 1 | 3 | 4 | "x" | 1.5 | -9223372036854775808
{"type":"integer","minimum":1,"exclusiveMinimum":true,"maximum":3,"exclusiveMaximum":true} | 1 | 2 | 3
{"type":"integer","exclusiveMinimum":true,"exclusiveMaximum":true} | 0
{"type":"number","minimum":0.5,"maximum":1e21} | 0.25 | 0.5 | 1e22 | 1e21 | 0.1
{"type":"number","minimum":1000000,"maximum":123456789} | 1 | 999999999 | 1234567890.5
{"type":"integer","minimum":9007199254740993,"maximum":9223372036854775807} | 9007199254740992 | 9007199254740993 | 9223372036854775807
{"type":"integer","multipleOf":3} | 0 | 3 | 4 | -3 | -4
{"type":"number","multipleOf":0.1} | 0.3 | 0.7 | 1 | 0.15 | 1e300
{"type":"number","multipleOf":0.01} | 4.35 | 19.99 | 0.29 | 1.005
{"type":"integer","multipleOf":0.5} | 1 | 3
{"type":"integer","multipleOf":1.5} | 3 | 4
{"type":"number","multipleOf":1e-9} | 1e-8 | 1.5e-9
{"type":"integer","enum":[1,2.0,3]} | 1 | 2 | 3 | 1.0 | 4 | "1" | null
{"type":"number","enum":[1.5,2]} | 1.5 | 2 | 2.0 | 3
// Strings.
{"type":"string","minLength":2,"maxLength":3} | "a" | "ab" | "abc" | "abcd" | "éé" | "日本" | "日本語文" | "" | 5 | "\ud83d\ude00"
{"type":"string","maxLength":0} | "" | "a"
{"type":"string","pattern":"^[a-c]+$"} | "abc" | "abd" | "" | "a\n" | 5
{"type":"string","pattern":"it's \"q\""} | "it" | "it's \"q\""
{"type":"string","enum":["a","b",""]} | "a" | "" | "c" | 1 | null
{"type":"string","enum":["a\"b","c\nd"]} | "x"
{"type":"string","enum":["a",null],"nullable":true} | null | "a" | "b"
{"type":"string","enum":["a"],"nullable":true} | null | "a"
{"type":"string","nullable":true,"minLength":1,"pattern":"a"} | null | ""
{"type":"string","format":"date-time"} | "2020-01-01T00:00:00Z" | "2020-01-01" | "" | 5
{"type":"string","format":"byte"} | "YQ==" | "YQ" | ""
{"type":"string","format":"ipv4"} | "1.2.3.4" | "::1"
{"type":"string","format":"unheard-of"} | "x"
{"type":"string","minimum":5,"minItems":5,"minProperties":5,"multipleOf":2,"required":["a"]} | "x"
{"type":"integer","minLength":5,"pattern":"x","format":"date","maxItems":0} | 5
{"type":"object","minLength":1,"pattern":"x","minimum":1,"minItems":4} | {}
{"type":"array","items":{"type":"string"},"minLength":1,"minProperties":1,"required":["a"]} | []
{"x-kubernetes-preserve-unknown-fields":true,"minLength":2,"minimum":5,"minItems":1,"minProperties":1} | "a" | 1 | [] | {} | true | null
// Arrays.
{"type":"array","minItems":1,"maxItems":2,"items":{"type":"integer"}} | [] | [1] | [1,2,3] | ["a","b","c"] | null
{"type":"array","maxItems":0,"items":{"type":"integer"}} | [1]
{"type":"array","items":{"type":"array","items":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}} | [[{"a":1},{}],[],[{"a":"x","b":1}],null]
{"type":"array","items":{"x-kubernetes-preserve-unknown-fields":true}} | [1,null,{"a":null}]
{"type":"array","enum":[["a"],[]],"items":{"type":"string"}} | ["a"] | [] | ["b"]
{"type":"array","items":{"type":"string","nullable":true}} | [null,"a"]
{"type":"array","items":{"type":"string","default":"d"}} | [null,"a"]
{"type":"array","items":{"type":"object","default":{"a":"x"},"properties":{"a":{"type":"string","default":"y"},"b":{"type":"string","default":"z"}}}} | [null,{},{"a":null},{"b":"1"}]
// Objects.
{"type":"object","required":["a","b"],"properties":{"a":{"type":"string"},"b":{"type":"string"}}} | {} | {"a":"x"} | {"a":"x","b":null} | {"b":1} | null
{"type":"object","required":["a","missing"],"properties":{"a":{"type":"string","nullable":true}}} | {"a":null}
{"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"type":"integer"}} | {} | {"a":1} | {"a":1,"b":2,"c":3} | {"a":"x","b":null,"c":1}
{"type":"object","maxProperties":1,"properties":{"a":{"type":"string"}}} | {"a":"x","b":1,"c":2}
{"type":"object","additionalProperties":true} | {"a":{"b":null}} | {}
{"type":"object","additionalProperties":{"type":"object","properties":{"a":{"type":"string","default":"d"}}}} | {"k":{},"l":{"a":null,"b":1},"m":null}
{"type":"object","additionalProperties":{"type":"string","default":"d"}} | {"k":null,"l":"x"} | {}
{"type":"object","additionalProperties":{"type":"string","nullable":true,"default":"d"}} | {"k":null,"l":"x"}
{"type":"object","additionalProperties":{"type":"string"}} | {"k":null,"":"x","a.b":1,"a/b":2,"a[0]":true}
{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":true} | {"a":1,"b":2}
{"type":"object","properties":{"a.b":{"type":"integer"},"a b":{"type":"integer"},"é":{"type":"integer"},"a/b":{"type":"integer"},"a\"b":{"type":"integer"}}} | {"a.b":"x"} | {"a b":"x"} | {"é":"x"} | {"a/b":"x"} | {"a\"b":"x"} | {"a.c":1} | {"A.B":1}
{"type":"object","enum":[{"a":1}],"properties":{"a":{"type":"integer"}}} | {"a":1} | {"a":1.0} | {"a":2} | {}
// Pruning.
{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}},"l":{"type":"array","items":{"type":"object","properties":{"c":{"type":"string"}}}}}} | {"a":{"b":"x","u":1},"l":[{"c":"y","v":2},{"w":3}],"z":4} | {"A":1,"a":{"B":"x"}}
{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}} | {"a":{"b":"x","u":1},"z":{"q":null}}
{"type":"object","properties":{"p":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}} | {"p":{"a":{"b":[1,{"c":null}]}},"q":1}
{"type":"object","additionalProperties":{"type":"object","properties":{"b":{"type":"string"}}}} | {"k":{"b":"x","u":1}}
{"type":"object","properties":{"a":{"type":"array","items":{"type":"array","items":{"type":"object","properties":{"b":{"type":"string"}}}}}}} | {"a":[[{"b":"x","u":1}],[{"v":1}]]}
{"type":"array","items":{"type":"object"}} | [{"a":1},{"b":{"c":1}}]
{"type":"array","items":{"x-kubernetes-preserve-unknown-fields":true,"type":"object","properties":{"a":{"type":"object"}}}} | [{"a":{"x":1},"b":1}]
{"type":"string"} | {"a":1} | [{"a":1}]
// Nulls and defaults.
{"type":"object","properties":{"n":{"type":"string","nullable":true},"f":{"type":"string"},"nd":{"type":"string","nullable":true,"default":"d"},"fd":{"type":"string","default":"d"}}} | {"n":null,"f":null,"nd":null,"fd":null} | {}
{"type":"object","nullable":true,"properties":{"a":{"type":"string","default":"d"}}} | null | {} | -
{"type":"object","default":{},"properties":{"a":{"type":"string","default":"d"}}} | - | null | {} | {"a":"x"}
{"type":"object","default":{"a":"o"},"properties":{"a":{"type":"string","default":"d"},"b":{"type":"object","default":{"c":1},"properties":{"c":{"type":"integer"},"e":{"type":"integer","default":2}}}}} | - | {} | {"b":{}} | {"b":null}
{"type":"integer","default":5} | - | null | 0
{"type":"boolean","default":false} | - | null
{"type":"string","default":null,"nullable":true} | - | null
{"type":"array","default":[{}],"items":{"type":"object","properties":{"a":{"type":"string","default":"d"}}}} | - | []
{"x-kubernetes-preserve-unknown-fields":true,"default":{"a":{"b":1}}} | - | null
{"x-kubernetes-preserve-unknown-fields":true,"type":"object","properties":{"a":{"type":"string","default":"d"},"b":{"type":"string"}}} | {"b":null,"c":null} | {}
{"x-kubernetes-int-or-string":true,"default":"50%"} | - | null | 1
{"type":"object","required":["a"],"properties":{"a":{"type":"string","default":"d"}}} | {} | {"a":null}
// Lists that are sets and maps.
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}} | ["a","b"] | ["a","a"] | ["a","b","a","b","a"] | ["a",1,1] | [null,null] | null
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"integer"}} | [1,1] | [1,1.0] | [1,2] | [1,"1"]
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"number"}} | [1,1.0,1.5,1.5]
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"boolean"}} | [true,false,true]
{"type":"array","x-kubernetes-list-type":"set","items":{"x-kubernetes-int-or-string":true}} | [1,"1",1]
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"string"},"b":{"type":"integer"}}}} | [{"a":"x"},{"a":"x"}] | [{"a":"x","b":1},{"b":1,"a":"x"}] | [{},{}] | [{"a":"x"},{"a":"y"}]
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"integer"}}} | [[1,2],[2,1]] | [[1,2],[1,2]] | [[],[]]
{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"integer"}}}} | [{"k":"a"},{"k":"b"}] | [{"k":"a"},{"k":"a","v":1}] | [{"k":"a"},{"v":1},{"v":2}] | [{"k":"a"},"x",{"k":"a"}] | [{"k":null},{"k":null}] | [{"k":1},{"k":1}] | [{"k":"a"},{"k":"b"},{"k":"a"},{"k":"b"}]
{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k","p"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"p":{"type":"integer","default":80}}}} | [{"k":"a"},{"k":"a","p":80}] | [{"k":"a"},{"k":"a","p":81}] | [{"p":80,"k":"a"},{"k":"a","p":80}] | [{"p":1},{"p":1}]
{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"boolean"},"l":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}} | [{"k":true,"l":["a","a"]},{"k":false,"l":["a","b"]},{"k":true}]
{"type":"object","additionalProperties":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}} | {"k":["a","a"],"l":["b"]}
{"type":"array","items":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}} | [["a","a"],["b"],["c","c"]]
{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"string"}} | ["a","a"]
// Junctors.
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"anyOf":[{"required":["a"]},{"required":["b"]}]} | {} | {"a":"x"} | {"a":"x","b":"y"} | {"a":1}
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"oneOf":[{"required":["a"]},{"required":["b"]}]} | {} | {"a":"x"} | {"a":"x","b":"y"}
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"allOf":[{"required":["a"]},{"required":["b"]}]} | {} | {"a":"x"} | {"a":"x","b":"y"}
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"not":{"required":["a","b"]}} | {} | {"a":"x","b":"y"}
{"type":"string","anyOf":[{"minLength":3},{"pattern":"^a"}]} | "b" | "ab" | "bcd" | 5 | null
{"type":"string","oneOf":[{"minLength":3},{"pattern":"^a"}]} | "b" | "ab" | "abc" | "bcd"
{"type":"string","allOf":[{"minLength":3},{"pattern":"^a"}]} | "b" | "ab" | "abc"
{"type":"string","not":{"enum":["a","b"]}} | "a" | "c"
{"type":"string","not":{"not":{"enum":["a","b"]}}} | "a" | "c"
{"type":"string","anyOf":[{"allOf":[{"minLength":2},{"maxLength":3}]},{"enum":["x"]}],"not":{"enum":["ab"]}} | "x" | "ab" | "abc" | "abcde"
{"type":"string","allOf":[{"anyOf":[{"format":"ipv4"},{"format":"ipv6"}]}]} | "1.2.3.4" | "::1" | "x"
{"type":"integer","anyOf":[{"maximum":1},{"minimum":10}],"nullable":true} | 5 | 1 | null
{"type":"array","items":{"type":"string","anyOf":[{"enum":["a"]},{"enum":["b"]}]},"anyOf":[{"minItems":2},{"maxItems":0}]} | ["c"] | [] | ["a","c"]
{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"integer"}}}},"anyOf":[{"properties":{"a":{"properties":{"b":{"minimum":5}}}}},{"properties":{"a":{"properties":{"b":{"maximum":1}}}}}]} | {"a":{"b":3}} | {"a":{"b":6}} | {"a":{}} | {"a":{"b":"x"}}
{"type":"string","oneOf":[{"minLength":1},{"minLength":2},{"minLength":3}]} | "abc" | ""
{"type":"string","anyOf":[{}]} | "a"
{"type":"string","not":{}} | "a"
{"type":"string","allOf":[{"enum":["a"]},{"enum":["b"]}]} | "a" | "c"
// Embedded resources.
{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true} | {} | {"apiVersion":"v1","kind":"Pod"} | {"apiVersion":"v1"} | {"apiVersion":"","kind":""} | {"apiVersion":"a/b/c","kind":"Pod"} | {"apiVersion":"v1","kind":"a_b"} | {"apiVersion":1,"kind":"Pod"} | {"apiVersion":"v1","kind":null}
{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true} | {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"l":"v"},"odd":1}} | {"apiVersion":"v1","kind":"Pod","metadata":{"name":5}} | {"apiVersion":"v1","kind":"Pod","metadata":"x"} | {"apiVersion":"v1","kind":"Pod","metadata":null} | {"apiVersion":"v1","kind":"Pod","metadata":{}}
{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true} | {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a/b","namespace":"N","generateName":"g","labels":{"a b":"c"},"annotations":{"d e":"f"}}} | {"apiVersion":"v1","kind":"Pod","metadata":{"finalizers":["x y"],"ownerReferences":[{}],"generation":-1}} | {"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":null}} | {"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":"2020-01-01T00:00:00Z","deletionTimestamp":"x"}}
{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object","properties":{"a":{"type":"string","default":"d"}}}}} | {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"b":1},"other":1} | {"apiVersion":"v1","kind":"Pod","spec":null}
{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","pattern":"^b"}}},"kind":{"type":"string","enum":["Pod"]}}} | {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} | {"apiVersion":"v1","kind":"Job","metadata":{"name":"b","labels":{"x":"y"}}}
{"type":"array","items":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}} | [{"apiVersion":"v1","kind":"Pod","metadata":{"odd":1}},{"kind":"Pod"}]
{"type":"object","additionalProperties":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}} | {"k":{"apiVersion":"v1","kind":"Pod","metadata":{"odd":1}}} | {"k":{"apiVersion":"v1"}} | {"k":{"apiVersion":"v1","kind":"Pod","metadata":{"name":5}}}
// Updates.
{"type":"string","maxLength":2} | "abc" -> "abc" | "abc" -> "abd" | "abc" -> "ab" | "ab" -> "abc" | "abc" -> - | - -> "abc" | null -> null
{"type":"string","enum":["a"]} | "x" -> "x" | "x" -> "y" | 1 -> 1 | 1 -> 1.0
{"type":"integer"} | "x" -> "x" | 1.5 -> 1.5 | null -> "x"
{"type":"object","required":["a"],"properties":{"a":{"type":"string"},"b":{"type":"string","maxLength":1},"c":{"type":"string"}}} | {"b":"xx"} -> {"b":"xx"} | {"b":"xx"} -> {"b":"xx","c":"y"} | {"b":"xx"} -> {"a":"z","b":"xx"} | {"a":"z","b":"xx"} -> {"b":"xx"} | {"b":"xx","c":"y"} -> {"b":"yy"}
{"type":"object","additionalProperties":{"type":"string","maxLength":1}} | {"k":"xx"} -> {"k":"xx","l":"y"} | {"k":"xx"} -> {"l":"xx"} | {"k":"xx","l":"yy"} -> {"k":"xx","l":"zz"}
{"type":"array","items":{"type":"string","maxLength":1}} | ["xx"] -> ["xx"] | ["xx"] -> ["xx","y"] | ["xx","y"] -> ["xx"] | ["xx","yy"] -> ["yy","xx"]
{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string","maxLength":1}} | ["xx"] -> ["xx"] | ["xx"] -> ["xx","y"] | ["xx","y"] -> ["y","xx"] | ["a","a"] -> ["a","a"] | ["a","a"] -> ["a","a","b","b"] | ["a"] -> ["a","a"]
{"type":"array","x-kubernetes-list-type":"atomic","maxItems":1,"items":{"type":"integer"}} | [1,2] -> [1,2] | [1,2] -> [2,1] | [1,2] -> [1,2,3]
{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"string","maxLength":1},"w":{"type":"integer"}}}} | [{"k":"a","v":"xx"}] -> [{"k":"a","v":"xx"}] | [{"k":"a","v":"xx"}] -> [{"k":"b"},{"k":"a","v":"xx","w":1}] | [{"k":"a","v":"xx"}] -> [{"k":"b","v":"xx"}] | [{"k":"a","v":"xx"}] -> [{"k":"a","v":"yy"}] | [{"k":"a"},{"k":"a"}] -> [{"k":"a"},{"k":"a"},{"k":"b"}] | [{"k":"a","v":"xx"},{"k":"a","v":"yy"}] -> [{"k":"a","v":"yy"},{"k":"b"}] | [{"v":"xx"}] -> [{"v":"xx"},{"k":"b"}]
{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k","p"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"p":{"type":"integer","default":80},"v":{"type":"string","maxLength":1}}}} | [{"k":"a","v":"xx"}] -> [{"k":"a","p":80,"v":"xx"}] | [{"k":"a","v":"xx"}] -> [{"k":"a","p":81,"v":"xx"}] | [{"k":"a","v":"xx"},{"k":"a","p":81,"v":"yy"}] -> [{"k":"a","p":81,"v":"yy"},{"k":"a","v":"zz"}]
{"type":"string","anyOf":[{"minLength":3},{"pattern":"^a"}]} | "b" -> "b" | "b" -> "c"
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"oneOf":[{"required":["a"]},{"required":["b"]}]} | {} -> {} | {"a":"x","b":"y"} -> {"a":"x","b":"y"} | {"a":"x","b":"y"} -> {"a":"x","b":"z"}
{"type":"object","properties":{"a":{"type":"string"}},"allOf":[{"properties":{"a":{"maxLength":1}}}]} | {"a":"xx"} -> {"a":"xx"} | {"a":"xx"} -> {"a":"yy"}
{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"allOf":[{"properties":{"a":{"maxLength":1}}}]} | {"a":"xx"} -> {"a":"xx","b":"y"}
{"type":"object","properties":{"a":{"type":"string","not":{"enum":["x"]}},"b":{"type":"string"}}} | {"a":"x"} -> {"a":"x","b":"y"}
{"type":"object","properties":{"a":{"type":"integer","default":3,"maximum":3},"b":{"type":"string"}},"maxProperties":1} | {"a":5} -> {"a":5,"b":"x"} | {"a":5,"b":"y"} -> {"a":5,"b":"x"} | {"b":"x"} -> {"b":"y"} | {"a":null,"b":"x"} -> {"b":"x"}
{"type":"object","minProperties":2,"additionalProperties":{"type":"string"}} | {"a":"x"} -> {"a":"x"} | {"a":"x"} -> {"a":"y"}
{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true} | {"apiVersion":"v1"} -> {"apiVersion":"v1"} | {"kind":"a_b","apiVersion":"v1"} -> {"kind":"a_b","apiVersion":"v1"} | {"kind":"Pod","apiVersion":"v1","metadata":{"name":5}} -> {"kind":"Pod","apiVersion":"v1"}
{"x-kubernetes-preserve-unknown-fields":true,"type":"object","properties":{"a":{"type":"string","maxLength":1}}} | {"a":"xx","u":1} -> {"a":"xx","u":2}
{"x-kubernetes-int-or-string":true,"maximum":5} | 6 -> 6 | 6 -> 7 | "a" -> 6
{"type":"number"} | "1" -> "1" | 1 -> 1.0
{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","maxLength":1}}}} | [{"a":"xx"}] -> [{"a":"xx"}] | [{"a":"xx"},{"a":"y"}] -> [{"a":"xx"},{"a":"z"}]
{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},"b":{"type":"string"}}} | {"l":["a","a"]} -> {"l":["a","a"],"b":"x"} | {"l":["a","a"]} -> {"l":["b","b"]}
`

// rootTables are whole cases. BASE stands for the apiVersion, kind and metadata of an object.
const rootTables = `
{"schema":{"type":"object"},"object":{BASE}}
{"schema":{"type":"object"},"object":{BASE,"spec":{"a":1},"status":{}}}
{"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"object":{BASE,"spec":{"a":null},"status":{}}}
{"schema":{"type":"object","required":["spec"]},"object":{BASE}}
{"schema":{"type":"object","required":["spec","other"],"properties":{"spec":{"type":"object"}}},"object":{BASE,"spec":null}}
{"schema":{"type":"object","minProperties":5},"object":{BASE}}
{"schema":{"type":"object","maxProperties":2},"object":{BASE}}
{"schema":{"type":"object","anyOf":[{"required":["a"]}]},"object":{BASE}}
{"schema":{"type":"object","not":{"required":["kind"]}},"object":{BASE}}
{"schema":{"type":"object","oneOf":[{"required":["a"]},{"required":["kind"]},{"required":["metadata"]}]},"object":{BASE}}
{"schema":{"type":"object","properties":{"kind":{"type":"string","enum":["Other"]},"apiVersion":{"type":"string","maxLength":1}}},"object":{BASE}}
{"schema":{"type":"object","properties":{"kind":{"type":"string","enum":["Other"]},"apiVersion":{"type":"string","maxLength":1},"x":{"type":"string"}}},"object":{BASE,"x":"b"},"old":{BASE,"x":"a"}}
{"schema":{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":2}}}}},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"abc"}}}
{"schema":{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":2}}},"x":{"type":"string"}}},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"abc"},"x":"b"},"old":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"abc"},"x":"a"}}
{"schema":{"type":"object","properties":{"metadata":{"type":"object","properties":{"generateName":{"type":"string","pattern":"^b"}}}}},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"abc","generateName":"a"}}}
{"schema":{"type":"object","properties":{"x":{"type":"string"}}},"object":{BASE,"x":"a","x":"b"}}
{"schema":{"type":"object","properties":{"x":{"type":"object","properties":{"a":{"type":"string"}}}}},"object":{BASE,"x":{"a":"b","a":"b","u":1,"u":2}}}
{"schema":{"type":"object","properties":{"x":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}}}}},"object":{BASE,"x":[{"a":"1"},{"a":"2","a":"3","v":1}],"y":1}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","name":"b","odd":1,"labels":{"a":"1","a":"2"}}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case"}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":null}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":"x"}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":[]}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":5}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":null}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"A_b"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":{"a":1}}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":{"a":null}}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":["a"]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":{"a b":"c d"},"annotations":{"e f":"g"}}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","annotations":{},"labels":null,"finalizers":[],"ownerReferences":null}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":"5"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":1.5}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":1.0}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":1e3}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":9223372036854775808}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":null}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":"2020-01-01T00:00:00Z"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":"2020-01-01T02:00:00.5+02:00"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":"yesterday"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":5}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":""}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","deletionGracePeriodSeconds":"5"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","finalizers":"f"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","finalizers":["f","a.io/f","a.b","orphan","foregroundDeletion","kubernetes","A B"]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","finalizers":["f","g"]}},"old":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","finalizers":["f"]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u","controller":true,"odd":1},{"apiVersion":"v1","kind":"Pod","name":"q","uid":"v","controller":true}]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"Event","name":"","uid":""}]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","ownerReferences":{}}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Update","fieldsV1":{"f:x":{}},"odd":1}]}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","clusterName":"c","selfLink":"/x","zzz":{"a":1},"Name":"b"}}}
{"schema":{"type":"object"},"namespaced":true,"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","namespace":"n"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Other","metadata":{"name":"a"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","metadata":{"name":"a"}}}
{"schema":{"type":"object"},"object":{"apiVersion":5,"kind":"Case","metadata":{"name":"a"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":["Case"],"metadata":{"name":"a"}}}
{"schema":{"type":"object"},"object":{"apiVersion":"a/b/c","kind":"Case","metadata":{"name":"a"}}}
{"schema":{"type":"object"},"object":[]}
{"schema":{"type":"object"},"object":"x"}
{"schema":{"type":"object"},"object":{}}
{"schema":{"type":"object"},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a"},"items":[]}}
{"schema":{"type":"object"},"stored":true,"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":{"a":1},"annotations":"x","generation":"5","odd":1,"finalizers":["f"]}}}
{"schema":{"type":"object"},"stored":true,"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","generation":3,"creationTimestamp":"bad","uid":"u"}}}
{"schema":{"type":"object"},"stored":true,"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":"x"}}
{"schema":{"type":"object"},"stored":true,"object":{"apiVersion":"a.io/v1","kind":"Case"}}
{"schema":{"type":"object","properties":{"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}},"stored":true,"object":{BASE,"e":{"apiVersion":5,"kind":null,"metadata":{"name":5,"labels":{"l":"v"},"odd":1}}}}
{"schema":{"type":"object","properties":{"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}},"stored":true,"object":{BASE,"e":{"apiVersion":"v1","kind":"Pod","metadata":"x"}}}
{"schema":{"type":"object","properties":{"x":{"type":"string","default":"d"},"y":{"type":"string"}}},"stored":true,"object":{BASE,"y":null,"z":1}}
{"schema":{"type":"object","properties":{"x":{"type":"string","default":"d","maxLength":1}}},"stored":true,"object":{BASE,"x":"long"}}
{"schema":{"type":"object","properties":{"spec":{"type":"object"},"status":{"type":"object","properties":{"a":{"type":"integer","default":1}}}}},"status":true,"object":{BASE,"spec":{},"status":{"a":"x"}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object"},"status":{"type":"object","properties":{"a":{"type":"integer"}}}},"required":["spec"]},"status":true,"object":{BASE,"spec":{},"status":{"a":1}}}
{"schema":{"type":"object","properties":{"x":{"type":"string"},"status":{"type":"object","properties":{"a":{"type":"integer"}}}}},"status":true,"old":{BASE,"x":"a","status":{"a":1}},"object":{BASE,"x":"b","status":{"a":2}}}
{"schema":{"type":"object","properties":{"x":{"type":"string"},"status":{"type":"object","properties":{"a":{"type":"integer"}}}}},"status":true,"old":{BASE,"x":"a"},"object":{BASE,"x":"b","status":{"a":2}}}
{"schema":{"type":"object","properties":{"x":{"type":"string"},"status":{"type":"object","properties":{"a":{"type":"integer"}}}}},"status":true,"subresource":"status","old":{BASE,"x":"a","status":{"a":1}},"object":{BASE,"x":"b","status":{"a":2}}}
{"schema":{"type":"object","properties":{"x":{"type":"string"},"status":{"type":"object","properties":{"a":{"type":"integer"}}}}},"status":true,"subresource":"status","old":{BASE,"x":"a","status":{"a":1}},"object":{BASE,"x":"b","status":{"a":"x"}}}
{"schema":{"type":"object","properties":{"x":{"type":"integer"},"status":{"type":"object","properties":{"a":{"type":"integer","maximum":5},"b":{"type":"string"}}}}},"status":true,"subresource":"status","old":{BASE,"x":"bad","status":{"a":9}},"object":{BASE,"x":"b","status":{"a":9,"b":"n"}}}
{"schema":{"type":"object","properties":{"x":{"type":"integer"},"status":{"type":"object","required":["b"],"properties":{"a":{"type":"integer","maximum":5},"b":{"type":"string"}}}}},"status":true,"subresource":"status","old":{BASE,"status":{"a":9}},"object":{BASE,"status":{"a":10}}}
{"schema":{"type":"object","properties":{"x":{"type":"integer"},"status":{"type":"object"}}},"status":true,"subresource":"status","old":{BASE,"status":{}},"object":{BASE}}
{"schema":{"type":"object","properties":{"x":{"type":"integer"}}},"status":true,"subresource":"status","old":{BASE},"object":{BASE,"status":{"a":1}}}
{"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":true,"subresource":"status","old":{BASE,"x":1},"object":{BASE,"x":2,"status":{"a":1}}}
{"schema":{"type":"object","properties":{"status":{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}}},"status":true,"subresource":"status","old":{BASE,"status":{"l":["a"]}},"object":{BASE,"status":{"l":["a","a"]}}}
{"schema":{"type":"object","properties":{"status":{"type":"object","properties":{"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}}}},"status":true,"subresource":"status","old":{BASE,"status":{}},"object":{BASE,"status":{"e":{}}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"replicas":{"type":"integer"}}},"status":{"type":"object","properties":{"replicas":{"type":"integer"},"sel":{"type":"string"}}}}},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.sel"},"object":{BASE,"spec":{"replicas":-1},"status":{"replicas":-1,"sel":"a"}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"replicas":{"type":"integer"}}},"status":{"type":"object","properties":{"replicas":{"type":"integer"},"sel":{"type":"string"}}}}},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.sel"},"object":{BASE,"spec":{"replicas":2147483648},"status":{"replicas":2147483648}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.sel"},"object":{BASE,"spec":{"replicas":"x"},"status":{"replicas":1.5,"sel":5}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},"scale":{"specReplicasPath":".spec.a.replicas","statusReplicasPath":".status.a.replicas"},"object":{BASE,"spec":{"a":"x"},"status":{"a":[1]}}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},"scale":{"specReplicasPath":".spec.a.replicas","statusReplicasPath":".status.a.replicas"},"object":{BASE}}
{"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"},"old":{BASE,"spec":{"replicas":-1}},"object":{BASE,"spec":{"replicas":-1,"x":1}}}
{"schema":{"type":"object"},"old":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a"}},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"b"}}}
{"schema":{"type":"object","properties":{"x":{"type":"string","maxLength":1}}},"old":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","labels":{"a":1},"odd":1},"x":"long","y":1},"object":{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a"},"x":"long"}}
{"schema":{"type":"object","properties":{"a":{"type":"string"}}},"preserveUnknownFields":true,"object":{BASE,"a":null,"b":{"c":null},"status":1}}
{"schema":{"type":"object","properties":{"a":{"type":"integer"},"e":{"type":"object","x-kubernetes-embedded-resource":true}}},"preserveUnknownFields":true,"object":{BASE,"a":"x","e":{"apiVersion":"v1","kind":"Pod","metadata":{"odd":1}},"b":1}}
{"schema":{"properties":{"a":{"minimum":5},"b":{"properties":{"c":{"pattern":"^x"}}}}},"preserveUnknownFields":true,"object":{BASE,"a":1,"b":{"c":"y"}}}
{"schema":{"properties":{"a":{"type":"array","items":[{"type":"string"},{"type":"integer"}],"additionalItems":false}}},"preserveUnknownFields":true,"object":{BASE,"a":[1,"x",true]}}
{"schema":{"properties":{"a":{"type":"array","uniqueItems":true,"items":{"type":"integer"}}}},"preserveUnknownFields":true,"object":{BASE,"a":[1,2,1]}}
{"schema":{"type":"object","additionalProperties":false,"properties":{"a":{"type":"string"}}},"preserveUnknownFields":true,"object":{BASE,"a":"x","b":1}}
{"schema":{"properties":{"a":{"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":{"type":"string"}}}},"preserveUnknownFields":true,"object":{BASE,"a":{"x1":"s","y":"t"}}}
{"preserveUnknownFields":true,"object":{BASE,"a":1}}
`

func objectTables() ([]question, error) {
	var cases []question
	const base = `"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a"}`
	object := func(value string) json.RawMessage {
		if value == "-" {
			return json.RawMessage("{" + base + "}")
		}
		return json.RawMessage("{" + base + `,"x":` + value + "}")
	}
	for line := range strings.Lines(valueTables) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		parts := strings.Split(line, " | ")
		for _, value := range parts[1:] {
			asked := question{Op: "object", Schema: json.RawMessage(`{"type":"object","properties":{"x":` + parts[0] + "}}")}
			old, changed, isUpdate := strings.Cut(strings.TrimSpace(value), " -> ")
			if isUpdate {
				asked.Old, asked.Object = object(old), object(changed)
			} else {
				asked.Object = object(old)
			}
			if !json.Valid(asked.Schema) || !json.Valid(asked.Object) || len(asked.Old) > 0 && !json.Valid(asked.Old) {
				return nil, fmt.Errorf("not JSON: %s", line)
			}
			cases = append(cases, asked)
		}
	}
	for line := range strings.Lines(strings.ReplaceAll(rootTables, "BASE", base)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		asked := question{}
		if err := json.Unmarshal([]byte(line), &asked); err != nil {
			return nil, fmt.Errorf("%w in %s", err, line)
		}
		asked.Op = "object"
		cases = append(cases, asked)
	}
	for _, asked := range cases {
		if !asked.PreserveUnknownFields && !isAccepted(asked.Schema, asked.Status) {
			return nil, fmt.Errorf("no definition has this schema: %s", asked.Schema)
		}
	}
	return cases, nil
}

// structuralTables are the schemas of the hand-written definitions that have one version.
func structuralTables() ([]question, error) {
	var cases []question
	for _, line := range definitionTables {
		if !strings.HasPrefix(line, "S") && !strings.HasPrefix(line, "P") || strings.Contains(line, "; old") || strings.Contains(line, "spec.versions") {
			continue
		}
		defined, err := editedDefinition(line)
		if err != nil {
			return nil, err
		}
		definition := parse(string(defined.Definition)).(tree)
		version := definition["spec"].(tree)["versions"].([]any)[0].(tree)
		asked := question{Op: "structural", Schema: raw(version["schema"].(tree)["openAPIV3Schema"])}
		if _, err := asked.answer(); err == nil {
			cases = append(cases, asked)
		}
	}
	return cases, nil
}
