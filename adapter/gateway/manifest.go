package gateway

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// Bounds of a file, beside those of spec.Plain.
const (
	objectsMax  = 1000
	problemsMax = 50
)

// serviceLabel is the label of an EndpointSlice with the name of its Service.
const serviceLabel = "kubernetes.io/service-name"

// file is the objects of one file, and the results of its conversion.
type file struct {
	name     string
	gateways []*gateway
	routes   []*route
	slices   []*endpointSlice
	services []*service
	specs    []pando.Spec
	warnings spec.Problems
	problems spec.Problems
}

// object is the part that all objects share.
type object struct {
	Name      string
	Namespace string
	body      ast.Node
}

type gateway struct {
	object
	Spec struct {
		GatewayClassName string     `yaml:"gatewayClassName"`
		Listeners        []listener `yaml:"listeners"`
	}
}

type listener struct {
	Name          string `yaml:"name"`
	Port          uint16 `yaml:"port"`
	Protocol      string `yaml:"protocol"`
	AllowedRoutes any    `yaml:"allowedRoutes"` // routes of the own namespace alone are attached
	Hostname      string `yaml:"hostname"`      // the API ignores it for TCP and UDP
	TLS           any    `yaml:"tls"`
}

type route struct {
	object
	protocol string
	Spec     struct {
		ParentRefs []parent `yaml:"parentRefs"`
		Rules      []rule   `yaml:"rules"`
	}
}

type parent struct {
	Group       string `yaml:"group"`
	Kind        string `yaml:"kind"`
	Namespace   string `yaml:"namespace"`
	Name        string `yaml:"name"`
	SectionName string `yaml:"sectionName"`
	Port        uint16 `yaml:"port"`
}

type rule struct {
	Name        string    `yaml:"name"`
	BackendRefs []backend `yaml:"backendRefs"`
}

type backend struct {
	Group     string `yaml:"group"`
	Kind      string `yaml:"kind"`
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
	Port      uint16 `yaml:"port"`
	Weight    *int   `yaml:"weight"`
}

type endpointSlice struct {
	object
	service   string
	Endpoints []struct {
		Addresses  []string `yaml:"addresses"`
		Conditions struct {
			Ready *bool `yaml:"ready"`
		} `yaml:"conditions"`
	} `yaml:"endpoints"`
	Ports []struct {
		Name     string `yaml:"name"`
		Port     uint16 `yaml:"port"`
		Protocol string `yaml:"protocol"`
	} `yaml:"ports"`
}

// port returns the port of a slice. Its key is the name and the protocol of a Service's port. Without
// the Service, it is the number.
func (e endpointSlice) port(want target) (uint16, bool) {
	for _, p := range e.Ports {
		if cmp.Or(p.Protocol, tcp) != want.protocol {
			continue
		}
		if want.service && p.Name == want.name || !want.service && p.Port == want.number {
			return p.Port, true
		}
	}
	return 0, false
}

// tcp is the protocol of a port that names none.
const tcp = "TCP"

// target is the port of endpoints to which a backend leads.
type target struct {
	service  bool // the Service is in the file, and names the port
	name     string
	number   uint16 // without the Service
	protocol string
}

type service struct {
	object
	Spec struct {
		Ports []servicePort `yaml:"ports"`
	} `yaml:"spec"`
}

type servicePort struct {
	Name     string `yaml:"name"`
	Port     uint16 `yaml:"port"`
	Protocol string `yaml:"protocol"`
}

// read parses the documents of a file. Aliases are refused: a small file could name a large one.
func (f *file) read(data []byte) {
	docs, err := parser.ParseBytes(data, 0)
	if err != nil {
		f.unread(err)
		return
	}
	objects := 0
	for _, d := range docs.Docs {
		if d.Body == nil || d.Body.Type() == ast.NullType {
			continue
		}
		a := &aliases{}
		ast.Walk(a, d.Body)
		if a.first != nil {
			at := a.first.GetToken().Position
			f.add(&f.problems, at.Line, at.Column, "", "aliases are refused: write the words out")
			return
		}
		f.object(d.Body, &objects)
	}
}

// aliases finds the first alias of a document.
type aliases struct{ first ast.Node }

// Visit implements ast.Visitor.
func (a *aliases) Visit(n ast.Node) ast.Visitor {
	if _, ok := n.(*ast.AliasNode); ok && a.first == nil {
		a.first = n
	}
	return a
}

// object reads one object, or the items of a List.
func (f *file) object(body ast.Node, objects *int) {
	var head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name      string            `yaml:"name"`
			Namespace string            `yaml:"namespace"`
			Labels    map[string]string `yaml:"labels"`
		} `yaml:"metadata"`
	}
	if *objects++; *objects > objectsMax {
		f.problems = spec.Problems{{File: f.name, Line: 1, Column: 1,
			Message: fmt.Sprintf("more than %d objects: split the file", objectsMax)}}
		return
	}
	if err := yaml.NodeToValue(body, &head); err != nil {
		f.unread(err)
		return
	}
	o := object{Name: head.Metadata.Name, Namespace: head.Metadata.Namespace, body: body}
	if o.Namespace == "" {
		o.Namespace = string(pando.DefaultTenant)
	}
	switch head.Kind {
	case "List":
		if items, ok := child(body, "items").(*ast.SequenceNode); ok {
			for _, item := range items.Values {
				f.object(item, objects)
			}
		}
	case "GatewayClass", "Namespace", "ReferenceGrant":
	case "Gateway":
		g := &gateway{object: o}
		f.strictly(o, &g.Spec)
		f.checkListeners(g)
		f.gateways = append(f.gateways, g)
	case "TCPRoute", "UDPRoute":
		r := &route{object: o, protocol: head.Kind[:3]}
		f.strictly(o, &r.Spec)
		f.routes = append(f.routes, r)
	case "EndpointSlice":
		e := &endpointSlice{object: o, service: head.Metadata.Labels[serviceLabel]}
		if err := yaml.NodeToValue(body, e); err != nil {
			f.unread(err)
		}
		f.slices = append(f.slices, e)
	case "Service":
		s := &service{object: o}
		if err := yaml.NodeToValue(body, s); err != nil {
			f.unread(err)
		}
		f.services = append(f.services, s)
	case "HTTPRoute", "GRPCRoute", "TLSRoute":
		f.wrong(o, "kind", "%s chooses by words inside a connection, and Pando steers packets: publish "+
			"a proxy such as Caddy as a service, which chooses", head.Kind)
	default:
		f.wrong(o, "kind", "%q: want Gateway, TCPRoute, UDPRoute, Service or EndpointSlice", head.Kind)
	}
}

// checkListeners reports the listeners that Pando cannot serve.
func (f *file) checkListeners(g *gateway) {
	for n, l := range g.Spec.Listeners {
		where := fmt.Sprintf("spec.listeners[%d]", n)
		if l.Protocol != "TCP" && l.Protocol != "UDP" {
			f.wrong(g.object, where+".protocol", "%q: want TCP or UDP: Pando steers packets", l.Protocol)
		} else if l.TLS != nil {
			f.wrong(g.object, where+".tls", "Pando ends no TLS: publish a proxy as a service")
		}
		if l.Port == 0 || l.Name == "" {
			f.wrong(g.object, where, "it has no name or no port")
		}
	}
}

// strictly reads the spec of an object. An unknown word may change its meaning, so it is an error.
func (f *file) strictly(o object, into any) {
	body := child(o.body, "spec")
	if body == nil {
		f.wrong(o, "", "%s has no spec", o.Name)
		return
	}
	if err := yaml.NodeToValue(body, into, yaml.Strict()); err != nil {
		f.unread(err)
	}
}

// child returns the value of a key of a mapping, or nil.
func child(n ast.Node, key string) ast.Node {
	m, ok := n.(ast.MapNode)
	if !ok {
		return nil
	}
	for it := m.MapRange(); it.Next(); {
		if it.Key().GetToken().Value == key {
			return it.Value()
		}
	}
	return nil
}

// unread adds the error of the parser, with its place.
func (f *file) unread(err error) {
	line, column, text := 1, 1, err.Error()
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		at := y.GetToken().Position
		line, column, text = at.Line, at.Column, y.GetMessage()
	}
	f.add(&f.problems, line, column, "", "%s", text)
}

// wrong adds an error at a path of an object, or at the object.
func (f *file) wrong(o object, path, format string, about ...any) {
	line, column := o.place(path)
	f.add(&f.problems, line, column, path, format, about...)
}

// warn adds a warning at a path of an object.
func (f *file) warn(o object, path, format string, about ...any) {
	line, column := o.place(path)
	f.add(&f.warnings, line, column, path, format, about...)
}

func (f *file) add(
	to *spec.Problems, line, column int, path, format string, about ...any,
) {
	if len(*to) < problemsMax {
		*to = append(*to, spec.Problem{File: f.name, Line: line, Column: column, Path: path,
			Message: fmt.Sprintf(format, about...)})
	}
}

// place returns the line and the column of a path of an object.
func (o object) place(path string) (line, column int) {
	n := o.body
	if p, err := yaml.PathString("$." + path); path != "" && err == nil {
		if found, err := p.FilterNode(o.body); err == nil && found != nil {
			n = found
		}
	}
	at := n.GetToken().Position
	return at.Line, at.Column
}
