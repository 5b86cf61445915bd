variable "kubeconfig" {
  description = "The kubeconfig file of the cluster."
  type        = string
  default     = "~/.kube/config"
}

variable "context" {
  description = "The context in it."
  type        = string
}

variable "namespace" {
  description = "The namespace of the pipeline, which is made here."
  type        = string
  default     = "media"
}

variable "image_repository" {
  description = "The image of the workers, built on Holdfast's."
  type        = string
}

variable "image_tag" {
  description = "Its tag."
  type        = string
}

variable "redis_url" {
  description = "Where Redis is, like rediss://media-redis.example.internal:6379/0."
  type        = string
  sensitive   = true
}

variable "redis_password" {
  description = "Its password."
  type        = string
  sensitive   = true
}

variable "redis_ports" {
  description = "The ports of redis_url, for the NetworkPolicy."
  type        = list(number)
  default     = [6379]
}

variable "database_url" {
  description = "Where PostgreSQL is, like postgresql://holdfast:…@postgres.example.internal:5432/holdfast."
  type        = string
  sensitive   = true
}

variable "database_port" {
  description = "The port of database_url, for the NetworkPolicy."
  type        = number
  default     = 5432
}

variable "scaling_token" {
  description = "What KEDA shows the api."
  type        = string
  sensitive   = true
}

variable "api_keys" {
  description = "Lines that `holdfast api new-key` prints, of everybody else who calls the api."
  type        = list(string)
  default     = []
  sensitive   = true
}

variable "workers_min" {
  description = "Workers that stay when there is no work."
  type        = number
  default     = 1
}

variable "workers_max" {
  description = "Workers that there are at most."
  type        = number
  default     = 20
}
