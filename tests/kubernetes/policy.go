// Runs a MutatingAdmissionPolicy with the code of Kubernetes' API server:
//
//	policy POLICY.json... < PODS.json
//
// The files have the policy, its bindings, its settings and namespaces; standard input has a list of pods. Prints the list
// of the pods as the API server would create them. Messages of the API server go to standard error.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi/openapitest"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(1)
	}
}

type logger struct{}

func (logger) Helper() {}

func (logger) Logf(format string, args ...any) {}

// withDefaults sets what the API server sets before it stores a policy or a binding.
func withDefaults(match *v1.MatchResources) {
	if match.MatchPolicy == nil {
		match.MatchPolicy = new(v1.MatchPolicyType)
		*match.MatchPolicy = v1.Equivalent
	}
	if match.NamespaceSelector == nil {
		match.NamespaceSelector = &metav1.LabelSelector{}
	}
	if match.ObjectSelector == nil {
		match.ObjectSelector = &metav1.LabelSelector{}
	}
}

func mapping(kind, resource string, scope meta.RESTScope) meta.RESTMapping {
	return meta.RESTMapping{
		Resource:         schema.GroupVersionResource{Version: "v1", Resource: resource},
		GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: kind},
		Scope:            scope,
	}
}

func main() {
	var objects, rules []runtime.Object
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		must(err)
		var kind struct{ Kind string }
		must(json.Unmarshal(text, &kind))
		var object runtime.Object
		switch kind.Kind {
		case "MutatingAdmissionPolicy":
			object = &v1.MutatingAdmissionPolicy{}
		case "MutatingAdmissionPolicyBinding":
			object = &v1.MutatingAdmissionPolicyBinding{}
		case "ConfigMap":
			object = &corev1.ConfigMap{}
		case "Namespace":
			object = &corev1.Namespace{}
		default:
			must(fmt.Errorf("%s: a %s", name, kind.Kind))
		}
		must(json.Unmarshal(text, object))
		object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		switch object := object.(type) {
		case *v1.MutatingAdmissionPolicy:
			evaluator := mutating.CompilePolicy(object)
			must(evaluator.Error)
			// With Ignore an expression that fails would not show.
			object.Spec.FailurePolicy = new(v1.FailurePolicyType)
			*object.Spec.FailurePolicy = v1.Fail
			withDefaults(object.Spec.MatchConstraints)
			rules = append(rules, object)
		case *v1.MutatingAdmissionPolicyBinding:
			if object.Spec.MatchResources != nil {
				withDefaults(object.Spec.MatchResources)
			}
			rules = append(rules, object)
		default:
			objects = append(objects, object)
		}
	}
	context, cancel, err := generic.NewPolicyTestContext[*v1.MutatingAdmissionPolicy, *v1.MutatingAdmissionPolicyBinding, mutating.PolicyEvaluator](
		logger{},
		mutating.NewMutatingAdmissionPolicyAccessor,
		mutating.NewMutatingAdmissionPolicyBindingAccessor,
		mutating.CompilePolicy,
		func(a authorizer.Authorizer, m *matching.Matcher, i kubernetes.Interface) generic.Dispatcher[mutating.PolicyHook] {
			return mutating.NewDispatcher(a, m, patch.NewTypeConverterManager(nil, openapitest.NewEmbeddedFileClient()))
		},
		objects,
		[]meta.RESTMapping{
			mapping("Pod", "pods", meta.RESTScopeNamespace),
			mapping("ConfigMap", "configmaps", meta.RESTScopeNamespace),
			mapping("Namespace", "namespaces", meta.RESTScopeRoot),
		})
	must(err)
	defer cancel()
	must(context.Start())
	must(context.UpdateAndWait(rules...))
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	interfaces := admission.NewObjectInterfacesFromScheme(scheme)
	var pods corev1.PodList
	must(json.NewDecoder(os.Stdin).Decode(&pods))
	for i := range pods.Items {
		pods.Items[i].SetGroupVersionKind(schema.GroupVersionKind{})
		pod := &pods.Items[i]
		attributes := admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), pod.Namespace,
			pod.Name, corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, nil)
		must(context.Plugin.Dispatch(context, attributes, interfaces))
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	must(encoder.Encode(pods))
}
