# The pipeline in a cluster that exists, with a Redis and a PostgreSQL that exist, wherever they run: no cloud's provider is used.
#   terraform init && terraform apply -var-file=production.tfvars
terraform {
  required_version = ">= 1.6"
  required_providers {
    kubernetes = { source = "hashicorp/kubernetes", version = "~> 2.30" }
    helm       = { source = "hashicorp/helm", version = "~> 2.14" }
  }
}

provider "kubernetes" {
  config_path    = var.kubeconfig
  config_context = var.context
}

provider "helm" {
  kubernetes {
    config_path    = var.kubeconfig
    config_context = var.context
  }
}

resource "kubernetes_namespace_v1" "media" {
  metadata {
    name   = var.namespace
    labels = { "pod-security.kubernetes.io/enforce" = "restricted" }
  }
}

# The Secret that `secret.existing` of helm-values.yaml names. KEDA's token is in it as it is, and as the line of a key that only reads.
resource "kubernetes_secret_v1" "holdfast" {
  metadata {
    name      = "media-clustering"
    namespace = kubernetes_namespace_v1.media.metadata[0].name
  }
  data = {
    "redis-url"      = var.redis_url
    "redis-password" = var.redis_password
    "database-url"   = var.database_url
    "scaling-token"  = var.scaling_token
    "api-keys"       = join(",", concat(["keda:*:read:${sha256(var.scaling_token)}"], var.api_keys))
  }
}

resource "helm_release" "media_clustering" {
  name      = "media-clustering"
  namespace = kubernetes_namespace_v1.media.metadata[0].name
  chart     = "${path.module}/../../../deploy/helm/holdfast"
  values    = [file("${path.module}/../helm-values.yaml")]
  timeout   = 600
  atomic    = true

  set {
    name  = "image.repository"
    value = var.image_repository
  }
  set {
    name  = "image.tag"
    value = var.image_tag
    type  = "string"
  }
  # The chart can't read the URLs in the Secret, and its NetworkPolicies open these ports.
  set_list {
    name  = "redis.ports"
    value = var.redis_ports
  }
  set {
    name  = "database.port"
    value = var.database_port
  }
  set {
    name  = "workers.clustering.scaling.min"
    value = var.workers_min
  }
  set {
    name  = "workers.clustering.scaling.max"
    value = var.workers_max
  }

  depends_on = [kubernetes_secret_v1.holdfast]
}
