package main

import "strings"

// baseDefinition is what the hand-written definitions edit.
const baseDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},
"spec":{"group":"a.io","scope":"Namespaced","names":{"plural":"cases","kind":"Case"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"}}}}}}}]}}`

// secondVersion is what "+v2" appends to the versions.
const secondVersion = `{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"other":{"type":"string"}}}}}`

const established = `{"acceptedNames":{"plural":"cases","singular":"case","kind":"Case","listKind":"CaseList"},` +
	`"conditions":[{"type":"Established","status":"True"}],"storedVersions":["v1"]}`

// definitionTables are edits of the base, separated by "; ":
//
//	PATH=JSON    sets a field; with "-" instead of JSON, removes it
//	+v2          appends a second version with another schema; +v2same one with the schema of the first
//	old          what follows edits the object in the store; both begin with the edits before. It is established
//	new          what follows edits the object of the request again
//
// S is spec.versions[0].schema.openAPIV3Schema, P its properties.
var definitionTables = strings.Split(strings.TrimSpace(`
spec.group=""
spec.group="nodot"
spec.group="A.io"
spec.group="a_b.io"
spec.group=-
metadata.name="other.a.io"
metadata.name=""
metadata.name="Cases.a.io"
metadata.labels={"a b":"c"}
metadata.annotations={"a b":"c"}
metadata.finalizers=["a"]
metadata.ownerReferences=[{"apiVersion":"v1","kind":"Pod","name":"","uid":""}]
metadata.unknown=1
unknown=1
spec.unknown=1
spec.scope=-
spec.scope=""
spec.scope="namespaced"
spec.scope="Cluster"
spec.names.plural=-
spec.names.plural="Cases"
spec.names.plural="1cases"
spec.names.singular="Case"
spec.names.singular="a.b"
spec.names.kind=-
spec.names.kind=""
spec.names.kind="CASE_x"
spec.names.kind="1Case"
spec.names.listKind="Case"
spec.names.listKind="case list"
spec.names.kind="Cases"; spec.names.listKind="cases"
spec.names.shortNames=["c","C","c d",""]
spec.names.shortNames=["c","c"]
spec.names.categories=["all","A","a.b"]
spec.names={}
spec.names=-
spec.versions=[]
spec.versions=-
spec.versions[0].name=""
spec.versions[0].name="V1"
spec.versions[0].name="v1.0"
spec.versions[0].name="1v"
spec.versions[0].served=false
spec.versions[0].storage=false
spec.versions[0].served=-; spec.versions[0].storage=-
spec.versions[0].schema=-
spec.versions[0].schema={}
spec.versions[0].schema={"openAPIV3Schema":null}
S={}
S={"type":"object"}
+v2
+v2same
+v2; spec.versions[1].storage=true
+v2; spec.versions[1].name="v1"
+v2; spec.versions[1].schema=-
+v2; spec.versions[0].schema=-; spec.versions[1].schema=-
+v2same; spec.versions[1].name="v1"; spec.versions[1].storage=true
spec.versions[0].deprecated=true
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="gone soon"
spec.versions[0].deprecationWarning="gone soon"
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning=""
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="a\nb"
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="a\u00a0b"
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="日本\u200b"
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="$LONG256"
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning="$LONG257"
spec.preserveUnknownFields=true
spec.preserveUnknownFields=false
spec.conversion={}
spec.conversion={"strategy":""}
spec.conversion={"strategy":"none"}
spec.conversion={"strategy":"None"}
spec.conversion={"strategy":"None","webhook":{"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"None","webhook":{"clientConfig":{"url":"https://a.io/"}}}
spec.conversion={"strategy":"Webhook"}
spec.conversion={"strategy":"Webhook","webhook":{}}
spec.conversion={"strategy":"Webhook","webhook":{"conversionReviewVersions":[]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","service":{"namespace":"n","name":"s"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"http://a.io/x"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":""},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://u:p@a.io/x?y=z#f"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/%zz"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"a.io"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a b.io/"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"x"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"/x//y"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"/x/"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"/"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":""}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"/A_b/c d"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","path":"//"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","port":0}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","port":65536}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"N","name":"s b"}},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"YQ=="},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"Cg=="},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"a"},"conversionReviewVersions":["v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v2"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v2","V3","v1","v1"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v1beta1",""]}}
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":".spec.a"}]
spec.versions[0].additionalPrinterColumns=[{}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"text","jsonPath":".a"}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","format":"uuid","jsonPath":".a"}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","format":"date-time","jsonPath":".a"}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":"a"}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":"."}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":"{.a}"}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":".a["}]
spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"date","jsonPath":".a","priority":-1},{"name":"","type":"","jsonPath":""}]
spec.versions[0].additionalPrinterColumns=[]
+v2; spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"text","jsonPath":".a"}]
+v2; spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"text","jsonPath":".a"}]; spec.versions[1].additionalPrinterColumns=[{"name":"A","type":"text","jsonPath":".a"}]
+v2same; spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"text","jsonPath":".a"}]; spec.versions[1].additionalPrinterColumns=[{"name":"B","type":"date","jsonPath":"a"}]
spec.versions[0].subresources={}
spec.versions[0].subresources={"status":{}}
spec.versions[0].subresources={"status":null}
spec.versions[0].subresources={"scale":{}}
spec.versions[0].subresources={"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}
spec.versions[0].subresources={"scale":{"specReplicasPath":"spec.replicas","statusReplicasPath":"status.replicas","labelSelectorPath":"spec.selector"}}
spec.versions[0].subresources={"scale":{"specReplicasPath":".status.replicas","statusReplicasPath":".spec.replicas","labelSelectorPath":".other"}}
spec.versions[0].subresources={"scale":{"specReplicasPath":".spec.replicas[0]","statusReplicasPath":".status","labelSelectorPath":""}}
spec.versions[0].subresources={"scale":{"specReplicasPath":".spec.","statusReplicasPath":".status.","labelSelectorPath":".spec."}}
+v2; spec.versions[0].subresources={"scale":{"specReplicasPath":".x","statusReplicasPath":".y"}}
+v2; spec.versions[0].subresources={"scale":{"specReplicasPath":".x","statusReplicasPath":".y"}}; spec.versions[1].subresources={"status":{}}
spec.versions[0].subresources={"status":{}}; S.required=["spec"]
spec.versions[0].subresources={"status":{}}; S.additionalProperties=true
spec.versions[0].subresources={"status":{}}; S.minProperties=1
spec.versions[0].subresources={"status":{}}; S.anyOf=[{"required":["spec"]}]
spec.versions[0].subresources={"status":{}}; S.type="array"
spec.versions[0].subresources={"status":{}}; S.x-kubernetes-preserve-unknown-fields=true
spec.versions[0].subresources={"status":{}}; S.x-kubernetes-map-type="atomic"
spec.versions[0].subresources={"status":{}}; S.enum=[{}]
+v2; spec.versions[1].subresources={"status":{}}; S.minProperties=1
+v2; spec.versions[1].subresources={"status":{}}; spec.versions[1].schema.openAPIV3Schema.not={"required":["a"]}
spec.versions[0].selectableFields=[{"jsonPath":".spec.a"},{"jsonPath":".spec.n"}]
spec.versions[0].selectableFields=[{"jsonPath":""}]
spec.versions[0].selectableFields=[{}]
spec.versions[0].selectableFields=[{"jsonPath":"spec.a"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec.missing"}]
spec.versions[0].selectableFields=[{"jsonPath":".metadata.name"}]
spec.versions[0].selectableFields=[{"jsonPath":".metadata.labels"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec.a"},{"jsonPath":".spec.a"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec['a']"},{"jsonPath":".spec.a"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec.a."}]
spec.versions[0].selectableFields=[{"jsonPath":"."}]
spec.versions[0].selectableFields=[{"jsonPath":".spec..a"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec[0]"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec['a"}]
spec.versions[0].selectableFields=[{"jsonPath":".spec.a b"}]
spec.versions[0].selectableFields=[{"jsonPath":".kind"},{"jsonPath":".apiVersion"}]
P.l={"type":"array","items":{"type":"string"}}; spec.versions[0].selectableFields=[{"jsonPath":".l"},{"jsonPath":".l[0]"}]
P.m={"type":"object","additionalProperties":{"type":"string"}}; spec.versions[0].selectableFields=[{"jsonPath":".m.k"},{"jsonPath":".m['k']"}]
P.x={"x-kubernetes-int-or-string":true}; P.f={"type":"number"}; P.b={"type":"boolean"}; P.e={"type":"string","enum":["a"]}; spec.versions[0].selectableFields=[{"jsonPath":".x"},{"jsonPath":".f"},{"jsonPath":".b"},{"jsonPath":".e"}]
P.a1={"type":"string"}; P.a2={"type":"string"}; P.a3={"type":"string"}; P.a4={"type":"string"}; P.a5={"type":"string"}; P.a6={"type":"string"}; P.a7={"type":"string"}; spec.versions[0].selectableFields=[{"jsonPath":".spec.a"},{"jsonPath":".spec.n"},{"jsonPath":".a1"},{"jsonPath":".a2"},{"jsonPath":".a3"},{"jsonPath":".a4"},{"jsonPath":".a5"},{"jsonPath":".a6"},{"jsonPath":".a7"}]
+v2; spec.versions[0].selectableFields=[{"jsonPath":".spec.b"}]
+v2; spec.versions[0].schema=-; spec.versions[0].selectableFields=[{"jsonPath":".spec.b"}]
spec.versions[0].schema=-; spec.versions[0].selectableFields=[{"jsonPath":".spec.b"}]
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"
spec.group="k8s.io"; metadata.name="cases.k8s.io"
spec.group="a.kubernetes.io"; metadata.name="cases.a.kubernetes.io"; metadata.annotations={"api-approved.kubernetes.io":""}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"https://github.com/kubernetes/kubernetes/pull/1"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"unapproved, legacy"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"yes"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"https://"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"/pull/1"}
spec.group="xk8s.io"; metadata.name="cases.xk8s.io"
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; old; spec.scope="Namespaced"
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; old; metadata.annotations={"api-approved.kubernetes.io":"unapproved"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; old; new; metadata.annotations={"api-approved.kubernetes.io":"bad"}
spec.group="a.k8s.io"; metadata.name="cases.a.k8s.io"; metadata.annotations={"api-approved.kubernetes.io":"bad"}; old
S.nullable=true
S.type=-
S.type="array"
S.type="string"
S.additionalProperties={"type":"string"}
S.additionalProperties=false
S.x-kubernetes-preserve-unknown-fields=true
S.x-kubernetes-preserve-unknown-fields=false
S.x-kubernetes-embedded-resource=true
S.x-kubernetes-int-or-string=true
S.required=["a"]
S.readOnly=true
S.discriminator={"propertyName":"a"}
S.const=1
S.if={"type":"object"}
S.$ref="#/x"
S.description="d"; S.title="t"; S.example={"a":1}; S.externalDocs={"url":"u","description":"d"}
S.default={}
S.default={"spec":{"a":"x"}}
S.id="x"
S.$schema="http://json-schema.org/schema#"
P.a={"type":"string","format":"zzz"}
P.a={"type":"string","format":"zzz"}; P.b={"type":"integer","format":"uuid"}; P.c={"type":"object","format":"date"}; P.d={"type":"number","format":"double"}
P.a={"type":"string","format":"zzz"}; old
P.a={"type":"string","format":"zzz"}; old; new; P.b={"type":"string","format":"yyy"}
P.a={}
P.a={"type":""}
P.a={"type":"null"}
P.a={"type":"any"}
P.a={"type":"array"}
P.a={"type":"array","items":{}}
P.a={"type":"array","items":[{"type":"string"}]}
P.a={"type":"array","items":[]}
P.a={"type":"array","items":{"type":"array"}}
P.a={"type":"array","items":{"type":"string"},"uniqueItems":true}
P.a={"type":"array","items":{"type":"string"},"uniqueItems":false}
P.a={"type":"array","items":{"type":"string"},"additionalItems":true}
P.a={"type":"object","properties":{"b":{"type":"string"}},"additionalProperties":{"type":"string"}}
P.a={"type":"object","properties":{"b":{"type":"string"}},"additionalProperties":true}
P.a={"type":"object","properties":{"b":{"type":"string"}},"additionalProperties":false}
P.a={"type":"object","properties":{},"additionalProperties":{"type":"string"}}
P.a={"type":"object","additionalProperties":false}
P.a={"type":"object","additionalProperties":{}}
P.a={"type":"object","patternProperties":{"a":{"type":"string"}}}
P.a={"type":"object","definitions":{"a":{"type":"string"}}}
P.a={"type":"object","dependencies":{"a":["b"]}}
P.a={"type":"object","dependencies":{"a":{"type":"string"}}}
P.a={"type":"string","pattern":"("}
P.a={"type":"string","pattern":"(?=a)"}
P.a={"type":"string","pattern":"a{1001}"}
P.a={"type":"integer","pattern":"("}
P.a={"type":"string","minLength":-1,"maxLength":-1}
P.a={"type":"string","minLength":5,"maxLength":1}
P.a={"type":"string","maximum":5}
P.a={"type":"integer","multipleOf":0}
P.a={"type":"integer","multipleOf":-1}
P.a={"type":"integer","minimum":"1"}
P.a={"type":"integer","minimum":1e400}
P.a={"type":"integer","maximum":9223372036854775808}
P.a={"type":"integer","exclusiveMinimum":1}
P.a={"type":["string","null"]}
P.a={"type":"string","enum":[]}
P.a={"type":"string","enum":["a","a"]}
P.a={"type":"string","enum":[1,null,{"b":[]}]}
P.a={"type":"string","enum":["a"],"default":"b"}
P.a={"type":"string","default":1}
P.a={"type":"string","default":null}
P.a={"type":"string","default":null,"nullable":true}
P.a={"type":"string","maxLength":2,"default":"abc"}
P.a={"type":"string","pattern":"^a","default":"b"}
P.a={"type":"string","format":"date","default":"b"}
P.a={"type":"integer","default":1.5}
P.a={"type":"integer","default":1.0}
P.a={"type":"integer","format":"int32","default":3000000000}
P.a={"type":"object","default":{"b":1}}
P.a={"type":"object","default":{},"required":["b"],"properties":{"b":{"type":"string"}}}
P.a={"type":"object","default":{},"required":["b"],"properties":{"b":{"type":"string","default":"c"}}}
P.a={"type":"object","properties":{"b":{"type":"string"}},"default":{"b":null}}
P.a={"type":"object","properties":{"b":{"type":"string","nullable":true}},"default":{"b":null}}
P.a={"type":"object","properties":{"b":{"type":"object","properties":{"c":{"type":"integer"}},"default":{"c":"x"}}},"default":{"b":{"d":1}}}
P.a={"type":"array","items":{"type":"string","default":1}}
P.a={"type":"array","items":{"type":"string"},"default":[1,"a",null]}
P.a={"type":"object","additionalProperties":{"type":"string","default":1}}
P.a={"type":"object","additionalProperties":{"type":"object","properties":{"b":{"type":"string","default":1}}}}
P.a={"type":"object","additionalProperties":{"type":"string"},"default":{"k":1}}
P.a={"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"},"default":["a","a"]}
P.a={"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"],"items":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}}},"default":[{"n":"a"},{"n":"a"}]}
P.a={"x-kubernetes-int-or-string":true,"default":1.5}
P.a={"x-kubernetes-int-or-string":true,"default":"a"}
P.a={"x-kubernetes-preserve-unknown-fields":true,"default":{"x":1}}
P.a={"type":"object","x-kubernetes-preserve-unknown-fields":true,"default":{"x":1},"properties":{"y":{"type":"object"}}}
P.a={"type":"object","x-kubernetes-preserve-unknown-fields":true,"default":{"y":{"z":1}},"properties":{"y":{"type":"object"}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"default":{}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"default":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"A/b"}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"default":{"apiVersion":"v1","kind":"Pod","metadata":{"name":5}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"default":{"apiVersion":"v1","kind":"Pod","metadata":{"odd":5}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","default":"b"}}}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"properties":{"metadata":{"type":"object","default":{"name":"b"}},"kind":{"type":"string","default":"Pod"}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object"}}}
P.a={"type":"string","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object"}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"additionalProperties":{"type":"string"}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"properties":{"metadata":{"type":"object","properties":{"x":{"type":"object","x-kubernetes-embedded-resource":true}}}}}
P.a={"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"properties":{"metadata":{"type":"string"},"kind":{"type":"object"},"apiVersion":{"type":"integer"}}}
P.metadata={"type":"string"}
P.metadata={"type":"object"}
P.metadata={"type":"object","properties":{"name":{"type":"string","pattern":"^a"}}}
P.metadata={"type":"object","properties":{"name":{"type":"string","default":"a"}}}
P.metadata={"type":"object","properties":{"labels":{"type":"object"}}}
P.metadata={"type":"object","properties":{"generateName":{"type":"string"},"name":{"type":"string"}}}
P.metadata={"type":"object","required":["name"]}
P.metadata={"type":"object","nullable":true}
P.metadata={"type":"object","default":{}}
P.metadata={"type":"object","additionalProperties":{"type":"string"}}
P.metadata={"type":"object","x-kubernetes-preserve-unknown-fields":true}
P.metadata={"type":"object","description":"d"}
P.metadata={"x-kubernetes-preserve-unknown-fields":true}
P.kind={"type":"string"}; P.apiVersion={"type":"string"}
P.kind={"type":"string","default":"Case"}
P.kind={"type":"integer"}
P.apiVersion={"type":"string","nullable":true}
S.anyOf=[{"properties":{"metadata":{}}}]
S.anyOf=[{"properties":{"metadata":{"properties":{"name":{"pattern":"^a"}}}}}]
S.not={"properties":{"spec":{"properties":{"x":{}}}}}
P.a={"x-kubernetes-int-or-string":true}
P.a={"type":"string","x-kubernetes-int-or-string":true}
P.a={"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]}
P.a={"x-kubernetes-int-or-string":true,"anyOf":[{"type":"string"},{"type":"integer"}]}
P.a={"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"},{"type":"boolean"}]}
P.a={"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}
P.a={"x-kubernetes-int-or-string":true,"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]}]}
P.a={"x-kubernetes-int-or-string":true,"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]},{"pattern":"a"}]}
P.a={"x-kubernetes-int-or-string":true,"allOf":[{"pattern":"a"},{"anyOf":[{"type":"integer"},{"type":"string"}]}]}
P.a={"x-kubernetes-int-or-string":true,"x-kubernetes-preserve-unknown-fields":true}
P.a={"x-kubernetes-int-or-string":true,"x-kubernetes-embedded-resource":true}
P.a={"anyOf":[{"type":"integer"},{"type":"string"}]}
P.a={"type":"integer","anyOf":[{"type":"integer"},{"type":"string"}]}
P.a={"type":"object","allOf":[{"properties":{"b":{"type":"string"}}}]}
P.a={"type":"object","properties":{"b":{"type":"string"}},"allOf":[{"properties":{"b":{"maxLength":1}}}],"oneOf":[{"required":["b"]}],"not":{"required":["c"]}}
P.a={"type":"object","properties":{"b":{"type":"array","items":{"type":"string"}}},"anyOf":[{"properties":{"b":{"items":{"pattern":"("}}}}]}
P.a={"type":"object","additionalProperties":{"type":"string"},"anyOf":[{"properties":{"b":{"maxLength":1}}}]}
P.a={"type":"object","anyOf":[{"additionalProperties":{"type":"string"}}]}
P.a={"type":"string","anyOf":[{"description":"d","title":"t","nullable":true,"default":"a","x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-embedded-resource":true,"x-kubernetes-int-or-string":true,"x-kubernetes-list-type":"set","x-kubernetes-list-map-keys":["a"],"x-kubernetes-map-type":"atomic"}]}
P.a={"type":"string","x-kubernetes-preserve-unknown-fields":true}
P.a={"type":"array","x-kubernetes-preserve-unknown-fields":true}
P.a={"type":"array","items":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"x-kubernetes-preserve-unknown-fields":true}
P.a={"type":"object","x-kubernetes-preserve-unknown-fields":false}
P.a={"type":"string","x-kubernetes-list-type":"set"}
P.a={"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-list-type":"atomic"}
P.a={"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"bag"}
P.a={"type":"array","items":{"type":"string"},"x-kubernetes-list-type":""}
P.a={"type":"array","items":{"type":"string"},"x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"string","nullable":true},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"object","x-kubernetes-map-type":"atomic"},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"object","x-kubernetes-map-type":"granular"},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"array","items":{"type":"string"}},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"atomic"},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set"},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"x-kubernetes-preserve-unknown-fields":true},"x-kubernetes-list-type":"set"}
P.a={"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"map"}
P.a={"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","properties":{"b":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a","a"]}
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"type":"object"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"type":"array","items":{"type":"string"}}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"type":"string","nullable":true}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","properties":{"a":{"type":"string","nullable":true,"default":"x"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","nullable":true,"required":["a"],"properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"x-kubernetes-int-or-string":true}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}
P.a={"type":"string","x-kubernetes-map-type":"atomic"}
P.a={"type":"object","x-kubernetes-map-type":"set"}
P.a={"type":"object","x-kubernetes-map-type":"granular"}
P.a={"x-kubernetes-unknown":true,"type":"string"}
P.a={"type":"object","properties":{"b":{"type":"object","properties":{"c":{},"d":{"type":"array"}}}}}
P.a.b={"type":"string"}
P={}
P=-
+v2; P.a={}
+v2; spec.versions[1].schema.openAPIV3Schema.properties.other.type="thing"
+v2; spec.versions[1].schema.openAPIV3Schema.properties.other.default=1
+v2; P.a={"type":"string","default":1}; spec.versions[1].schema.openAPIV3Schema.properties.other.default="x"
spec={}
spec=-
metadata=-
status={"storedVersions":["v0"]}
status={"conditions":[{"type":"Established","status":"True"}],"acceptedNames":{"plural":"X","kind":""},"storedVersions":[]}
spec.versions[0].schema.openAPIV3Schema="x"
spec.versions[0].served="true"
spec.versions={}
spec.group=5
old
old; spec.group="b.io"
old; spec.names.plural="others"
old; spec.scope="Cluster"
old; spec.names.kind="Other"
old; spec.scope="Cluster"; spec.names.kind="Other"; spec.names.plural="others"; spec.group="b.io"
old; spec.scope="Cluster"; status.conditions=[]
old; spec.names.kind="Other"; status.conditions=[{"type":"Established","status":"False"}]
old; spec.names.singular="one"; spec.names.shortNames=["o"]
old; new; +v2
old; new; +v2; spec.versions[0].storage=false; spec.versions[1].storage=true
old; new; +v2; spec.versions[0].storage=false; spec.versions[0].served=false; spec.versions[1].storage=true
old; new; spec.versions[0].name="v2"
old; status.storedVersions=["v0","v1"]
old; status.storedVersions=[]
old; status.storedVersions=["v0","va","v1"]
old; metadata.name="others.a.io"
old; metadata.uid="u"
old; spec.preserveUnknownFields=true
spec.preserveUnknownFields=true; old
spec.preserveUnknownFields=true; old; spec.preserveUnknownFields=false
spec.preserveUnknownFields=true; P.a={"type":"string","default":"x"}; old
P.a={}; old
P.a={}; old; new; P.b={"type":"string"}
P.a={}; old; P.a={"type":"string"}; new; P.b={"type":"string"}
P.a={"type":"any"}; old
P.a={"type":"any"}; old; new; P.b={"type":"string"}
P.a={"type":"any"}; old; P.a={"type":"other"}
P.a={"type":"string","default":1}; old
P.a={"type":"string","default":1}; old; P.a={"type":"string"}
P.a={"type":"object","default":{"b":1}}; old
P.a={"type":"object","default":{"b":1}}; old; new; P.c={"type":"object","default":{"b":1}}
P.a={"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"set"}; old
P.a={"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"set"}; old; P.a=-
P.a={"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}; old
P.a={"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"]}; old; P.a=-
P.a={"type":"array","items":{"type":"string","nullable":true},"x-kubernetes-list-type":"set"}; old
P.a={"type":"string","pattern":"("}; old
spec.versions[0].schema=-; old
spec.versions[0].schema=-; old; new; spec.versions[0].additionalPrinterColumns=[{"name":"A","type":"string","jsonPath":".spec.a"}]
old; spec.versions[0].schema=-
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v2"]}}; old
old; new; spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v2"]}}
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x"},"conversionReviewVersions":["v2"]}}; old; spec.conversion.webhook.conversionReviewVersions=["v3"]
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"YQ=="},"conversionReviewVersions":["v1"]}}; old
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"YQ=="},"conversionReviewVersions":["v1"]}}; old; spec.conversion=-
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"YQ=="},"conversionReviewVersions":["v1"]}}; old; spec.conversion=-; status.conditions=[]
spec.conversion={"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a.io/x","caBundle":"YQ=="},"conversionReviewVersions":["v1"]}}; old; spec.conversion.webhook.clientConfig.caBundle="Yg=="
P.a1={"type":"string"}; P.a2={"type":"string"}; P.a3={"type":"string"}; P.a4={"type":"string"}; P.a5={"type":"string"}; P.a6={"type":"string"}; P.a7={"type":"string"}; spec.versions[0].selectableFields=[{"jsonPath":".spec.a"},{"jsonPath":".spec.n"},{"jsonPath":".a1"},{"jsonPath":".a2"},{"jsonPath":".a3"},{"jsonPath":".a4"},{"jsonPath":".a5"},{"jsonPath":".a6"},{"jsonPath":".a7"}]; old
P.a1={"type":"string"}; P.a2={"type":"string"}; P.a3={"type":"string"}; P.a4={"type":"string"}; P.a5={"type":"string"}; P.a6={"type":"string"}; P.a7={"type":"string"}; spec.versions[0].selectableFields=[{"jsonPath":".spec.a"},{"jsonPath":".spec.n"},{"jsonPath":".a1"},{"jsonPath":".a2"},{"jsonPath":".a3"},{"jsonPath":".a4"},{"jsonPath":".a5"},{"jsonPath":".a6"},{"jsonPath":".a7"}]; old; spec.versions[0].selectableFields=[{"jsonPath":".spec.a"}]
P.a={"type":"string","pattern":"("}; old; P.a=-
spec.names.singular="Bad One"; old
spec.versions[0].deprecated=true; spec.versions[0].deprecationWarning=""; old
P.a={"type":"array","items":{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a","a"]}; old
`), "\n")

// storedDefinitions are objects as servers have stored them.
var storedDefinitions = []string{
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io","uid":"u","generation":2},"spec":{"group":"a.io","version":"v1","scope":"Namespaced","names":{"plural":"cases","kind":"Case"}}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","names":{"plural":"cases","kind":"Case"},"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,"storage":false}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","version":"v1","scope":"Cluster","names":{"plural":"cases","singular":"case","kind":"Case","listKind":"CaseList"},"preserveUnknownFields":false,"validation":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string"}}}},"subresources":{"status":{},"scale":{"specReplicasPath":".spec.r","statusReplicasPath":".status.r"}},"additionalPrinterColumns":[{"name":"A","type":"string","JSONPath":".a"}],"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":false,"storage":false}]},"status":{"storedVersions":["v1"],"acceptedNames":{"plural":"cases","kind":"Case"},"conditions":[]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","names":{"plural":"cases","kind":"Case"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"properties":{"a":{}}}},"additionalPrinterColumns":[{"name":"A","type":"string","JSONPath":".a"}]},{"name":"v2","served":true,"storage":false,"subresources":{"status":{}}}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","version":"v1","names":{"plural":"cases","kind":"Case"},"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{"namespace":"n","name":"s"},"caBundle":"YQ=="},"conversionReviewVersions":["v1beta1"]}}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","version":"v1","names":{"plural":"cases","kind":"Case"},"conversion":{"strategy":"Webhook","webhookClientConfig":{"url":"https://a.io/x","caBundle":"Cg=="}}}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","version":"v1","names":{"plural":"cases","kind":"Case"},"conversion":{"strategy":"None"},"preserveUnknownFields":true,"validation":{}}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","version":"v2","names":{"plural":"cases","kind":"Case"},"versions":[{"name":"v1","served":true,"storage":true}],"additionalPrinterColumns":[{"name":"A","type":"string","JSONPath":".a"}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","scope":"Namespaced","names":{"plural":"cases","kind":"Case"},"versions":[{"name":"v1","served":true,"storage":true}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},"spec":{"group":"a.io","scope":"Namespaced","names":{"plural":"cases","kind":"Case"},"versions":[],"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s"}},"conversionReviewVersions":["v1"]}}},"status":{"storedVersions":["v0"]}}`,
}
