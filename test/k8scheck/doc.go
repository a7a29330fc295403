// Package k8scheck tests the manifests of examples/kubernetes: that they decode,
// strictly, into the types of Kubernetes, JobSet and Kubeflow's Trainer, and that
// what they say of muster is so.
//
// It is a module of its own, since those types bring a hundred modules that muster
// has no use for.
package k8scheck
